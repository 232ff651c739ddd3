"""The service behind tokens: who is let in, who is told what, and what every answer carries."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import insert

from conv_advisor.app.guard.policy import COOKIE, SECURE_COOKIE
from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.caller import Scope
from conv_advisor.data.database.tables import DEVICES
from conv_advisor.data.errors import InvalidInput, StoreError, WorkerError
from conv_advisor.data.store import Store
from tests.app.serving import GPU, LAYER, Client, is_problem, measure_enough, serving
from tests.processes import eventually

TOKENS = {scope: make_token() for scope in Scope}
ENTRIES = ";".join(entry_of(scope, [scope], token) for scope, token in TOKENS.items())
PAGE = {"accept": "text/html,application/xhtml+xml"}

DOORS = [
    (Scope.READ, "GET", f"/v1/advice?layer={LAYER}", None),
    (Scope.READ, "POST", "/v1/advice", {"layers": [LAYER]}),
    (Scope.READ, "GET", "/v1/models", None),
    (Scope.READ, "GET", "/metrics", None),
    (Scope.READ, "GET", "/openapi.json", None),
    (Scope.READ, "GET", "/v2", None),
    (Scope.READ, "GET", "/", None),
    (Scope.MEASURE, "POST", "/v1/convolutions", {"layer": LAYER}),
    (Scope.MEASURE, "POST", "/v2/models/conv/infer", {"inputs": []}),
    (Scope.ADMINISTER, "POST", "/v1/models", {"device": "nobody"}),
    (Scope.ADMINISTER, "PUT", "/v1/models/active", {"device": GPU.id, "model": "none"}),
    (Scope.ADMINISTER, "DELETE", "/v1/jobs/none", None),
]


def bearer(scope: Scope) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[scope]}"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), tokens=ENTRIES) as client:
        assert eventually(lambda: client.get("/readyz").status_code == 200)
        yield client


@pytest.mark.parametrize(("needed", "method", "path", "body"), DOORS, ids=[f"{m} {p}" for _, m, p, _ in DOORS])
def test_every_door_opens_to_its_scope_alone(client: Client, needed: Scope, method: str, path: str, body: Any) -> None:
    refused = client.request(method, path, json=body)
    is_problem(refused, 401, "unauthorized")
    assert refused.headers["www-authenticate"] == 'Bearer realm="conv-advisor"'
    wrong = client.request(method, path, json=body, headers={"authorization": f"Bearer {make_token()}"})
    is_problem(wrong, 401, "unauthorized")
    for scope in Scope:
        answer = client.request(method, path, json=body, headers=bearer(scope))
        if scope is needed:
            assert answer.status_code not in (401, 403), answer.text
            continue
        document = is_problem(answer, 403, "forbidden")
        assert f"needs the scope '{needed}'" in document["detail"]
        assert f'error="insufficient_scope", scope="{needed}"' in answer.headers["www-authenticate"]


@pytest.mark.parametrize("kind", ["retrain", "calibrate", "refresh"])
def test_a_job_that_changes_trees_needs_more_than_one_that_measures(client: Client, kind: str) -> None:
    before = client.get("/v1/jobs", headers=bearer(Scope.READ)).json()["jobs"]
    asked = client.post("/v1/jobs", json={"kind": kind, "device": GPU.id}, headers=bearer(Scope.MEASURE))
    assert asked.status_code in (403, 405), "its body asks for more than its address says"
    assert client.get("/v1/jobs", headers=bearer(Scope.READ)).json()["jobs"] == before


@pytest.mark.parametrize("header", ["Basic {}", "Bearer", "Bearer  ", "{}", "bearer: {}", "Token {}"])
def test_a_header_of_another_kind_lets_nobody_in(client: Client, header: str) -> None:
    given = {"authorization": header.format(TOKENS[Scope.READ])}
    assert client.get("/v1/models", headers=given).status_code == 401
    both = given | {"cookie": f"{COOKIE}={TOKENS[Scope.READ]}"}
    assert client.get("/v1/models", headers=both).status_code == 401, (
        "a header that is wrong is not made good by a cookie"
    )


def test_the_scheme_has_no_case_and_a_token_in_the_query_is_none(client: Client) -> None:
    assert client.get("/v1/models", headers={"authorization": f"bEARER {TOKENS[Scope.READ]}"}).status_code == 200
    assert client.get(f"/v1/models?token={TOKENS[Scope.READ]}&access_token={TOKENS[Scope.READ]}").status_code == 401


def test_probes_are_open_and_say_nothing_of_the_inside(client: Client, tmp_path: Path) -> None:
    for path in ("/livez", "/readyz", "/v2/health/live", "/v2/health/ready", "/v2/models/conv/ready"):
        assert client.get(path).status_code == 200, path
    broken = create_app(Settings(home=tmp_path, tokens=ENTRIES), open_engine=_no_engine, timings=tmp_path / "nothing")
    unready = Client(broken)
    try:
        for path in ("/readyz", "/v2/health/ready"):
            anybody = unready.get(path)
            assert anybody.status_code == 503
            assert "missing" not in anybody.json()
            assert "secret" not in anybody.text
        assert eventually(lambda: "secret" in unready.get("/readyz", headers=bearer(Scope.READ)).text)
    finally:
        unready.close()


def _no_engine(_settings: Settings) -> Any:
    raise WorkerError("no driver at /secret/place")


def test_a_browser_is_led_to_the_form_and_back_with_a_cookie_no_script_can_read(client: Client) -> None:
    led = client.get(f"/models?device={GPU.id}", headers=PAGE)
    assert led.status_code == 303
    assert led.headers["location"] == "/sign-in?next=/models%3Fdevice%3Dfake-gpu"
    form = client.get(led.headers["location"], headers=PAGE)
    assert (form.status_code, 'type="password"' in form.text, 'id="status"' in form.text) == (200, True, False)
    given = {"token": f" {TOKENS[Scope.READ]}\n", "next": f"/models?device={GPU.id}"}
    signed = client.post("/sign-in", data=given, headers={"origin": "http://localhost"})
    assert (signed.status_code, signed.headers["location"]) == (303, f"/models?device={GPU.id}")
    cookie = signed.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}={TOKENS[Scope.READ]};")
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert not {"secure", "max-age", "expires", "domain"} & {
        part.partition("=")[0].lower() for part in cookie.split("; ")
    }
    session = {"cookie": f"theme=dark; other=%7B%22a%22; {COOKIE}={TOKENS[Scope.READ]}"}
    shown = client.get("/models", headers=PAGE | session)
    assert shown.status_code == 200
    assert "Sign out" in shown.text
    assert TOKENS[Scope.READ] not in shown.text
    gone = client.post("/sign-out", headers=session)
    assert (gone.status_code, gone.headers["location"]) == (303, "/sign-in")
    assert "Max-Age=0" in gone.headers["set-cookie"]


def test_over_tls_the_cookie_is_the_hosts_own_and_goes_nowhere_in_the_clear(client: Client) -> None:
    signed = client.post("https://localhost/sign-in", data={"token": TOKENS[Scope.READ]})
    cookie = signed.headers["set-cookie"]
    assert cookie.startswith(f"{SECURE_COOKIE}=")
    assert {"Secure", "Path=/", "HttpOnly"} <= set(cookie.split("; "))
    plain = {"cookie": f"{COOKIE}={TOKENS[Scope.READ]}"}
    assert client.get("https://localhost/v1/models", headers=plain).status_code == 401
    secure = {"cookie": f"{SECURE_COOKIE}={TOKENS[Scope.READ]}"}
    assert client.get("https://localhost/v1/models", headers=secure).status_code == 200


def test_a_wrong_token_is_refused_and_not_repeated(client: Client) -> None:
    wrong = make_token()
    refused = client.post("/sign-in", data={"token": wrong})
    assert refused.status_code == 401
    assert wrong not in refused.text
    assert "set-cookie" not in refused.headers


@pytest.mark.parametrize("target", ["https://evil.example", "//evil.example", "/\\evil.example", "evil", "", "/\r\nx"])
def test_nobody_is_led_elsewhere_after_signing_in(client: Client, target: str) -> None:
    signed = client.post("/sign-in", data={"token": TOKENS[Scope.READ], "next": target})
    assert (signed.status_code, signed.headers["location"]) == (303, "/")


def test_a_part_of_a_page_says_where_to_sign_in_and_a_form_which_scope_it_lacks(client: Client) -> None:
    part = client.get("/status", headers={"hx-request": "true"})
    assert (part.status_code, part.headers["hx-redirect"]) == (401, "/sign-in")
    session = {"cookie": f"{COOKIE}={TOKENS[Scope.READ]}", "hx-request": "true", "origin": "http://localhost"}
    refused = client.post("/models/retrain", data={"device": GPU.id}, headers=session)
    assert refused.status_code == 403
    assert "administer" in refused.text
    assert refused.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "where", [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_another_sites_page_can_change_nothing_with_the_visitors_cookie(client: Client, where: dict[str, str]) -> None:
    headers = where | {"cookie": f"{COOKIE}={TOKENS[Scope.ADMINISTER]}"}
    for method, path in (
        ("POST", "/models/retrain"),
        ("POST", "/v1/models"),
        ("DELETE", "/v1/jobs/x"),
        ("POST", "/sign-in"),
    ):
        is_problem(client.request(method, path, headers=headers), 403, "forbidden")
    is_problem(client.post("/v2/models/conv/infer", headers=where), 403, "forbidden")


def test_the_document_names_scheme_and_scope_of_every_operation(client: Client) -> None:
    document = client.get("/openapi.json", headers=bearer(Scope.READ)).json()
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    paths = document["paths"]
    assert paths["/v1/models"]["post"]["security"] == [{"token": ["administer"]}, {"session": ["administer"]}]
    assert paths["/v1/convolutions"]["post"]["security"][0] == {"token": ["measure"]}
    assert paths["/livez"]["get"]["security"] == []
    for path, operations in paths.items():
        for method, operation in operations.items():
            expected = {"403", "421", "429"} | ({"401"} if operation["security"] else set())
            assert expected <= set(operation["responses"]), (method, path)


def test_who_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with serving(tmp_path, tokens=ENTRIES, rate_limit_per_s=0.001, rate_limit_burst=3) as client:
        statuses = [client.get("/v1/models", headers=bearer(Scope.READ)).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        late = client.get("/v1/models", headers=bearer(Scope.READ))
        is_problem(late, 429, "too-many-requests")
        assert 500 < int(late.headers["retry-after"]) <= 1000
        assert client.get("/v1/jobs/none", headers=bearer(Scope.MEASURE)).status_code == 403, (
            "another token, another bucket"
        )
        assert [client.get("/v1/models").status_code for _ in range(4)] == [401, 401, 401, 429]
        assert [client.get("/livez").status_code for _ in range(10)] == [200] * 10, "probes are never held up"
        assert client.post("/sign-in", data={"token": "x"}).status_code == 429, "nor can tokens be tried at leisure"


def test_on_loopback_without_tokens_everything_is_open_and_as_often_as_one_likes(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        assert client.app.state.service.settings.rate_per_s == 0
        assert [client.get("/v1/networks").status_code for _ in range(20)] == [200] * 20
        assert client.get("/metrics").status_code == 200
        assert client.get("/sign-in", headers=PAGE).headers["location"] == "/"
        security = client.get("/openapi.json").json()["paths"]["/v1/models"]["post"]["security"]
        assert {} in security, "a token may be shown, and need not"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])  # noqa: S104 - refused
def test_beyond_loopback_there_is_no_service_without_tokens(tmp_path: Path, host: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"host is .* allowed: a loopback address, or tokens: .* `conv-advisor token"
    ):
        create_app(Settings(home=tmp_path, host=host))
    assert create_app(Settings(home=tmp_path, host=host, tokens=ENTRIES))


def test_beyond_loopback_an_empty_file_of_tokens_lets_nobody_in(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# none yet\n")
    with serving(tmp_path, host="192.0.2.1", tokens_file=tmp_path / "tokens") as client:
        assert client.get("/v1/models").status_code == 401


EVERYWHERE = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
}


def broken(app: FastAPI) -> None:
    """Add a route with a bug."""

    @app.get("/bug")
    def bug() -> None:
        _ = 1 / 0


def test_every_answer_carries_what_keeps_browsers_careful(client: Client) -> None:
    read = bearer(Scope.READ)
    broken(client.app)
    asked: dict[int, tuple[str, str, dict[str, Any]]] = {
        200: ("GET", "/v1/models", {"headers": read}),
        303: ("GET", "/models", {"headers": PAGE}),
        400: ("GET", "/v1/advice?layer=x", {"headers": read}),
        401: ("GET", "/v1/models", {}),
        403: ("POST", "/v1/models", {"headers": read}),
        404: ("GET", "/nowhere", {"headers": read}),
        405: ("PUT", "/livez", {"headers": bearer(Scope.ADMINISTER)}),
        413: ("POST", "/v1/advice", {"headers": read | {"content-length": "9" * 12}}),
        415: ("POST", "/v1/advice", {"headers": read | {"content-encoding": "gzip"}, "content": b"x"}),
        421: ("GET", "/v1/models", {"headers": read | {"host": "evil.example"}}),
        422: ("POST", "/v1/advice", {"headers": read, "json": {"layers": 1}}),
        500: ("GET", "/bug", {"headers": read}),
    }
    for status, (method, path, content) in asked.items():
        response = client.request(method, path, **content)
        assert response.status_code == status, (path, response.text)
        for name, value in EVERYWHERE.items():
            assert response.headers[name] == value, (status, name)
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"], status
        assert re.fullmatch(r"no-referrer|same-origin", response.headers["referrer-policy"]), status
        assert response.headers["x-request-id"], status
        assert response.headers["cache-control"] == "no-store", status
        assert "strict-transport-security" not in response.headers, status
    for path in ("/livez", "/static/page.css", "/nowhere"):
        assert client.get(f"https://localhost{path}").headers["strict-transport-security"] == "max-age=31536000"


def test_a_name_that_is_made_to_lead_here_gets_no_answer(tmp_path: Path) -> None:
    with serving(tmp_path) as client:
        for host in ("evil.example", "evil.example:80", "localhost.evil.example", ""):
            for path in ("/", "/v1/models", "/livez", f"/v1/advice?layer={LAYER}"):
                is_problem(client.get(path, headers={"host": host}), 421, "misdirected-request")
        assert client.get("/v1/models", headers={"host": "127.0.0.1:8000"}).status_code == 200
        assert client.get("/v1/models", headers={"host": "[::1]:8000"}).status_code == 200
    (tmp_path / "named").mkdir()
    with serving(tmp_path / "named", allowed_hosts="advice.example.org, *.internal") as client:
        assert client.get("/livez", headers={"host": "advice.example.org"}).status_code == 200
        assert client.get("/livez", headers={"host": "a.internal:1"}).status_code == 200
        assert client.get("/livez", headers={"host": "localhost"}).status_code == 421


def test_no_log_line_has_a_token_or_what_a_body_says(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    mark = "body-that-is-nobodys-business"
    token = TOKENS[Scope.MEASURE]
    with caplog.at_level(logging.DEBUG):
        client.get(f"/v1/models?token={token}", headers=bearer(Scope.READ) | {"x-note": mark})
        client.get("/v1/models", headers={"authorization": f"Bearer {token}x"})
        client.post("/v1/convolutions", json={"layer": LAYER, "variant": mark}, headers=bearer(Scope.MEASURE))
        client.post("/v1/convolutions", content=mark, headers=bearer(Scope.MEASURE))
        client.post("/sign-in", data={"token": token, "next": "/"})
        client.post("/sign-in", data={"token": f"{token}x", "next": "/"})
        client.get("/models", headers=PAGE | {"cookie": f"{COOKIE}={token}"})
        client.get(f"/v1/jobs/{token}", headers=bearer(Scope.READ))
    ours = [record for record in caplog.records if not record.name.startswith("httpx")]
    assert sum(record.name == "conv_advisor.app.access" for record in ours) == 8
    for record in ours:
        for secret in (*TOKENS.values(), mark):
            assert secret not in record.getMessage() + repr(record.__dict__), record.name


def test_settings_do_not_show_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from conv_advisor.app.settings import load_settings

    password = "hunter2-very-secret"  # noqa: S105 - made up
    monkeypatch.setenv("CONV_ADVISOR_DATABASE_URLL", f"postgresql://user:{password}@db/advice")
    with pytest.raises(InvalidInput) as caught:
        load_settings()
    assert password not in str(caught.value)
    monkeypatch.delenv("CONV_ADVISOR_DATABASE_URLL")
    shown = repr(Settings(home=tmp_path, database_url=f"postgresql://user:{password}@db/advice", tokens=ENTRIES))
    assert password not in shown
    assert "sha256" not in shown


@pytest.mark.parametrize(
    "url", ["postgres//user:{}@x/db", "postgresql+psycopg://user:{}@127.0.0.1:1/db", "foo://a:{}@x"]
)
def test_an_error_of_the_database_does_not_show_its_password(url: str) -> None:
    password = "hunter2-very-secret"  # noqa: S105 - made up
    with pytest.raises(StoreError) as caught:
        Store(url.format(password))
    assert password not in str(caught.value)


_WATCH: dict[str, list[str] | None] = {"asked": None}


def test_an_error_of_the_database_says_nothing_of_a_job_in_answer_or_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mark, key = "run-nobodys-business", "key-nobodys-business"
    with serving(tmp_path) as own, caplog.at_level(logging.DEBUG):
        with own.app.state.service.store.engine.begin() as connection:
            refuse = "CREATE TRIGGER full BEFORE INSERT ON jobs BEGIN SELECT RAISE(ABORT, 'it is full'); END"
            connection.exec_driver_sql(refuse)
        body = {"kind": "measure", "layers": [LAYER], "run_id": mark}
        response = own.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
    assert "it is full" in is_problem(response, 503, "store-error")["detail"]
    assert "it is full" in caplog.text
    for secret in (mark, key, "INSERT"):
        assert secret not in response.text
        assert secret not in caplog.text


def test_a_corrupt_row_of_a_device_is_named_wherever_it_is_read(tmp_path: Path) -> None:
    with serving(tmp_path) as own:
        assert eventually(lambda: own.get("/readyz").status_code == 200)
        with own.app.state.service.store.engine.begin() as connection:
            connection.execute(insert(DEVICES), {"fingerprint": "spoilt", "id": "spoilt", "json": "{}"})
        asked = f"layer={LAYER}&device=nvidia-h100"
        answers = [own.get(path) for path in ("/v1/devices", f"/v1/advice?{asked}", f"/v1/pareto?{asked}")]
        answers.append(own.post("/v1/jobs", json={"kind": "measure", "layers": [LAYER], "device": "abacus"}))
        answers.append(own.post("/v1/jobs", json={"kind": "retrain", "device": GPU.id}))
        for answer in answers:
            assert "fingerprint 'spoilt'" in is_problem(answer, 503, "store-error")["detail"]
        assert [own.get(path, headers=PAGE).status_code for path in ("/", "/models", "/networks/alexnet")] == [503] * 3


def test_a_stream_of_events_ends_when_its_token_is_taken_out_of_the_file(tmp_path: Path) -> None:
    file, token = tmp_path / "tokens", make_token()
    file.write_text(entry_of("listener", [Scope.MEASURE, Scope.READ], token))
    file.chmod(0o600)
    headers = {"authorization": f"Bearer {token}"}
    with serving(tmp_path, tokens_file=file) as own, ThreadPoolExecutor(1) as thread:
        service = own.app.state.service
        body = {"kind": "measure", "layers": [LAYER], "device": "nvidia-h200"}  # which nobody here has: it stays queued
        job = own.post("/v1/jobs", json=body, headers=headers).json()
        listening = thread.submit(own.get, f"/v1/jobs/{job['id']}/events", headers=headers)
        try:
            assert eventually(lambda: service.streams._open)
            file.write_text(entry_of("another", [Scope.READ], make_token()))
            assert eventually(listening.done)
            assert own.get("/v1/jobs", headers=headers).status_code == 401
        finally:
            service.stop_soon()  # so that one that goes on does not hold the test for an hour


def _note_network(event: str, arguments: tuple[Any, ...]) -> None:
    asked = _WATCH["asked"]
    if asked is None:
        return
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        asked.append(f"{event} {arguments!r}")


sys.addaudithook(_note_network)


@contextmanager
def network_noted() -> Iterator[list[str]]:
    """What this process asks of the network, by Python's own audit."""
    asked: list[str] = []
    _WATCH["asked"] = asked
    try:
        yield asked
    finally:
        _WATCH["asked"] = None


def test_no_address_that_a_caller_gives_is_ever_fetched(client: Client) -> None:
    address = "http://192.0.2.1:9/x.safetensors"
    everything = {"authorization": f"Bearer {TOKENS[Scope.MEASURE]}", "referer": address, "x-forwarded-host": address}
    parameters = client.get("/openapi.json", headers=bearer(Scope.READ)).json()["paths"]
    asked: list[tuple[str, str, dict[str, Any]]] = []
    for path, operations in parameters.items():
        filled = re.sub(r"\{\w+\}", address.replace("/", "%2F"), path)
        for method, operation in operations.items():
            query = {each["name"]: address for each in operation.get("parameters", []) if each["in"] == "query"}
            names = (
                "layer",
                "layers",
                "device",
                "model",
                "variant",
                "url",
                "href",
                "dtype",
                "layout",
                "run_id",
                "kind",
            )
            body = {"json": dict.fromkeys(names, address)} if method in ("post", "put") else {}
            asked.append((method.upper(), filled, {"params": query} | body))
    asked += [
        ("GET", path, {"params": dict.fromkeys(("layer", "device", "next"), address)})
        for path in ("/", "/map", "/sign-in")
    ]
    tokens = TOKENS.values()
    with network_noted() as noted:
        for method, path, content in asked:
            for token in tokens:
                client.request(method, path, headers=everything | {"authorization": f"Bearer {token}"}, **content)
    assert len(asked) > 20
    assert noted == []
    with network_noted() as noted:
        import socket

        socket.getaddrinfo("127.0.0.1", 9)
    assert noted, "the watch works"


def test_an_idempotency_key_of_another_token_is_another_key(tmp_path: Path) -> None:
    tokens = {name: make_token() for name in ("one", "other")}
    entries = ";".join(entry_of(name, [Scope.MEASURE, Scope.READ], token) for name, token in tokens.items())
    key = {"Idempotency-Key": "monday"}
    with serving(tmp_path, tokens=entries) as own:
        assert eventually(lambda: own.get("/readyz").status_code == 200)
        made: dict[str, list[str]] = {"one": [], "other": []}
        for name in ("one", "other", "one"):
            body = {"kind": "measure", "layers": [LAYER], "samples": 2 + (name == "other")}
            headers = key | {"authorization": f"Bearer {tokens[name]}"}
            made[name].append(own.post("/v1/jobs", json=body, headers=headers).json()["id"])
        assert made["one"][0] == made["one"][1] != made["other"][0]


def test_ids_of_jobs_cannot_be_guessed(client: Client) -> None:
    everybody = bearer(Scope.ADMINISTER)
    measure_enough(client)
    made = [client.post("/v1/models", json={"device": GPU.id}, headers=everybody).json()["id"] for _ in range(8)]
    assert len(set(made)) == 8
    assert all(len(job_id) >= 22 for job_id in made), "128 bits, six to a character"
    common = [len(set(column)) for column in zip(*made, strict=True)]
    assert sum(count == 1 for count in common) <= 2, "no part of them is the same"
    for job_id in made:
        client.request("DELETE", f"/v1/jobs/{job_id}", headers=everybody)
