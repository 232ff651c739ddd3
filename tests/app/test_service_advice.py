"""GET and POST /v1/advice, through the real application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from conv_advisor.data.errors import StoreError
from conv_advisor.data.measurement import Measurement, Outcome, Pick
from conv_advisor.data.problem import FIELDS, ConvProblem
from tests.app.serving import FAST, GPU, LAYER, LEAN, SLOW, SMALL, TIMES_MS, Client, is_problem, serving
from tests.databases import new_database

UNSEEN = "28-8-3-64-32"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home")) as client:
        yield client


def advice(client: Client, query: str) -> dict:
    response = client.get(f"/v1/advice?{query}")
    assert response.status_code == 200, response.text
    return response.json()


def test_a_short_form_gets_the_fastest_variant_and_the_whole_ranking(client: Client) -> None:
    answer = advice(client, f"layer={UNSEEN}&device=fake-gpu")
    assert answer["variant"] == FAST
    assert [choice["variant"] for choice in answer["ranking"]] == [FAST, SLOW, LEAN]
    assert answer["time_ms"] == answer["ranking"][0]["time_ms"] > 0
    slowdowns = [choice["slowdown"] for choice in answer["ranking"]]
    assert slowdowns == pytest.approx([ms / TIMES_MS[FAST] for ms in TIMES_MS.values()], rel=1e-3)
    assert answer["source"] == "predicted"
    assert answer["device"] == "fake-gpu"


def test_an_answer_that_a_client_has_already_is_not_sent_again(client: Client) -> None:
    path = f"/v1/advice?layer={LAYER}&device=fake-gpu"
    first = client.get(path)
    tag = first.headers["etag"]
    assert first.headers["cache-control"] == "private, no-cache"
    for known in (tag, f'"other", W/{tag}', "*"):
        same = client.get(path, headers={"if-none-match": known})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag), known
    for other in ('"other"', tag.replace('"', ""), "nothing"):
        assert client.get(path, headers={"if-none-match": other}).content == first.content
    assert client.get(path + "&ranking=false").headers["etag"] != tag
    is_problem(client.get(path + "&n=2", headers={"if-none-match": "*"}), 400, "invalid-problem")


def test_an_answer_says_the_problem_the_model_and_the_decisions(client: Client) -> None:
    answer = advice(client, f"layer={UNSEEN}&dtype=float16&layout=nhwc&device=fake-gpu")
    problem = ConvProblem.parse(UNSEEN, dtype="float16", layout="nhwc")
    assert {name: answer["problem"][name] for name in FIELDS} == {name: getattr(problem, name) for name in FIELDS}
    assert answer["problem"]["layer"] == UNSEEN
    models = client.get("/v1/models").json()["models"]
    assert answer["model"] in [model["id"] for model in models]
    assert [step["is_below"] for step in answer["path"]] == [True]


def test_named_parameters_mean_what_the_short_form_means(client: Client) -> None:
    named = "n=2&c=4&h=8&w=8&k=6&r=3&s=3&pad_h=1&pad_w=1&device=fake-gpu"
    assert advice(client, named)["problem"]["layer"] == LAYER
    assert advice(client, named.replace("pad_h=1&pad_w=1", "pad=1")) == advice(client, named)
    assert advice(client, f"layer={LAYER}&stride=2&device=fake-gpu")["problem"]["stride_w"] == 2


def test_the_default_device_is_the_workers_gpu(client: Client) -> None:
    client.post("/v1/convolutions", json={"layer": LAYER, "variant": LEAN})  # waits for the worker
    assert advice(client, f"layer={UNSEEN}")["device"] == "fake-gpu"


def test_a_measured_time_counts_instead_of_a_predicted_one(client: Client) -> None:
    layer = "9-2-3-6-4"
    problem = ConvProblem.parse(layer)
    surprises = [
        Measurement(problem, LEAN, GPU, Outcome.MEASURED, "", (0.01, 0.01, 0.01), 0, 1e-7),
        Measurement(problem, FAST, GPU, Outcome.MEASURED, "", (0.09, 0.09, 0.09), 0, 1e-7),
    ]
    client.app.state.service.store.append(surprises)
    found = {choice["variant"]: choice for choice in advice(client, f"layer={layer}&device=fake-gpu")["ranking"]}
    assert (found[LEAN]["source"], found[LEAN]["time_ms"]) == ("measured", pytest.approx(0.01))
    assert (found[FAST]["source"], found[FAST]["time_ms"]) == ("measured", pytest.approx(0.09))
    assert found[LEAN]["slowdown"] < found[FAST]["slowdown"]
    assert found[SLOW]["source"] == "predicted"


def test_every_answer_says_what_others_would_run(client: Client) -> None:
    layer = "13-2-3-6-4"
    known = advice(client, f"layer={layer}&device=fake-gpu")["baselines"]
    assert (known["cudnn_best"]["variant"], known["cudnn_best"]["source"]) == (FAST, "predicted")
    assert known["cudnn_best"]["speedup"] == 1
    assert known["cudnn_heuristic"]["time_ms"] is known["pytorch_default"]["time_ms"] is None
    assert "not asked" in known["cudnn_heuristic"]["basis"]
    problem = ConvProblem.parse(layer)
    measured = [
        Measurement(problem, name, GPU, Outcome.MEASURED, "", (ms, ms, ms), 0, 1e-7)
        for name, ms in ((FAST, 0.04), (LEAN, 0.02))
    ]
    store = client.app.state.service.store
    store.append(measured, [Pick(problem, GPU, "cudnn.graph.heuristic_a", FAST)])
    asked = advice(client, f"layer={layer}&device=fake-gpu")
    heuristic = asked["baselines"]["cudnn_heuristic"]
    assert asked["variant"] == LEAN
    assert (heuristic["variant"], heuristic["source"], heuristic["speedup"]) == (FAST, "measured", pytest.approx(2))
    body = {"layers": [layer], "device": "fake-gpu", "ranking": True}
    (listed,) = client.post("/v1/advice", json=body).json()["advice"]
    assert listed["baselines"] == asked["baselines"]


def test_cudnn_alone_is_asked_for_everywhere_in_one_way(client: Client) -> None:
    asked = "layer=17-2-3-6-4&device=fake-gpu"
    problem = ConvProblem.parse("17-2-3-6-4")
    measured = [
        Measurement(problem, name, GPU, Outcome.MEASURED, "", (ms, ms, ms), 0, 1e-7)
        for name, ms in ((FAST, 0.04), (LEAN, 0.02))
    ]
    client.app.state.service.store.append(measured)
    assert advice(client, asked)["variant"] == LEAN
    whole = advice(client, f"{asked}&only=cudnn")
    assert [choice["variant"] for choice in whole["ranking"]] == [FAST]
    assert (
        "only variants of cudnn" in {exclusion["variant"]: exclusion["reason"] for exclusion in whole["excluded"]}[LEAN]
    )
    alone = advice(client, f"{asked}&only=cudnn&ranking=false")
    assert (alone["variant"], alone["time_ms"]) == (FAST, whole["time_ms"])
    for more in ({}, {"ranking": True}, {"baselines": True}):
        body = {"layers": ["17-2-3-6-4"], "device": "fake-gpu", "only": "cudnn", **more}
        (listed,) = client.post("/v1/advice", json=body).json()["advice"]
        assert (listed["variant"], listed["time_ms"]) == (FAST, whole["time_ms"])
    assert client.get(f"/v1/pareto?{asked}&only=cudnn").json()["front"] == [FAST]
    assert client.get(f"/v1/snippets?{asked}&only=cudnn").json()["variant"] == FAST
    assert FAST in client.get(f"/?{asked}&only=cudnn").text


def test_who_else_may_be_asked_for_alone_is_said(client: Client) -> None:
    response = client.get("/v1/advice?layer=17-2-3-6-4&only=nvidia")
    assert "cudnn" in str(is_problem(response, 422, "unprocessable-entity"))


def test_baselines_come_without_the_ranking_where_they_are_asked_for(client: Client) -> None:
    layer = "19-2-3-6-4"
    whole = advice(client, f"layer={layer}&device=fake-gpu")
    alone = advice(client, f"layer={layer}&device=fake-gpu&ranking=false&baselines=true")
    assert set(alone) == {"layer", "variant", "time_ms", "source", "model", "device", "baselines"}
    assert alone["baselines"] == whole["baselines"]
    assert "baselines" not in advice(client, f"layer={layer}&device=fake-gpu&ranking=false")
    answer = client.post("/v1/advice", json={"layers": [layer, "no-layer"], "device": "fake-gpu", "baselines": True})
    listed, refused = answer.json()["advice"]
    assert set(listed) == {"index", "layer", "variant", "time_ms", "source", "baselines"}
    assert listed["baselines"] == whole["baselines"]
    assert set(refused) == {"index", "error"}
    too_many = client.post("/v1/advice", json={"layers": [layer] * 1001, "device": "fake-gpu", "baselines": True})
    assert "1000" in is_problem(too_many, 400, "invalid-input")["allowed"]


def test_what_does_not_apply_is_excluded_with_its_reason(client: Client) -> None:
    excluded = {
        exclusion["variant"]: exclusion["reason"]
        for exclusion in advice(client, "layer=9-1-5-3-3&device=fake-gpu")["excluded"]
    }
    assert "5x5" in excluded["cuda.winograd_fused"]
    assert not any(name.startswith("cpu.") for name in excluded)


def test_the_workspace_limit_and_determinism_narrow_the_choice(client: Client) -> None:
    free = advice(client, f"layer={UNSEEN}&device=fake-gpu")
    narrow = advice(client, f"layer={UNSEEN}&device=fake-gpu&max_workspace_bytes=0")
    assert {choice["workspace_bytes"] for choice in narrow["ranking"]} <= {0, None}
    assert len(narrow["ranking"]) < len(free["ranking"])
    sure = advice(client, f"layer={UNSEEN}&device=fake-gpu&deterministic=true")
    assert all(choice["is_deterministic"] for choice in sure["ranking"])


def test_a_list_is_answered_in_order_with_the_best_of_each(client: Client) -> None:
    layers = [UNSEEN, {"layer": LAYER, "dtype": "float16"}, {"n": 1, "c": 3, "h": 9, "w": 9, "k": 2, "r": 1, "s": 1}]
    response = client.post("/v1/advice", json={"layers": layers, "device": "fake-gpu"})
    assert response.status_code == 200, response.text
    answers = response.json()["advice"]
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    assert answers[0] == {
        "index": 0,
        "layer": UNSEEN,
        "variant": FAST,
        "time_ms": advice(client, f"layer={UNSEEN}&device=fake-gpu")["time_ms"],
        "source": "predicted",
    }


def test_common_parameters_hold_where_a_layer_names_none(client: Client) -> None:
    body = {"layers": [LAYER, {"layer": LAYER, "dtype": "tf32"}], "dtype": "float16", "layout": "nhwc", "ranking": True}
    answers = client.post("/v1/advice", json=body | {"device": "fake-gpu"}).json()["advice"]
    assert [answer["problem"]["dtype"] for answer in answers] == ["float16", "tf32"]
    assert {answer["problem"]["layout"] for answer in answers} == {"nhwc"}
    assert all(answer["ranking"] and answer["path"] for answer in answers)


def test_a_bad_layer_in_a_list_says_so_in_its_place(client: Client) -> None:
    body = {"layers": [LAYER, "14-1-3", LAYER, {"layer": LAYER, "groups": 5}], "device": "fake-gpu"}
    answers = client.post("/v1/advice", json=body).json()["advice"]
    assert ["error" in answer for answer in answers] == [False, True, False, True]
    assert answers[1]["index"] == 1
    assert answers[1]["error"]["type"] == "/problems/invalid-layer-name"
    assert answers[3]["error"]["field"] == "groups"


def test_ten_thousand_layers_are_answered_and_one_more_is_not(client: Client) -> None:
    layers = [f"{size}-{n}-3-16-{c}" for size in range(7, 57) for n in (1, 8) for c in range(1, 101)]
    assert len(layers) == 10_000
    answers = client.post("/v1/advice", json={"layers": layers, "device": "fake-gpu"}).json()["advice"]
    assert [answer["layer"] for answer in answers] == layers
    is_problem(client.post("/v1/advice", json={"layers": [*layers, LAYER]}), 422, "unprocessable-entity")
    too_many = {"layers": layers[:1001], "ranking": True}
    assert is_problem(client.post("/v1/advice", json=too_many), 400, "invalid-input")["field"] == "layers"


def test_a_device_without_a_model_is_advised_on_its_measurements(client: Client) -> None:
    from dataclasses import replace

    other = replace(GPU, id="other-gpu")
    client.app.state.service.store.append([Measurement(SMALL, SLOW, other, Outcome.MEASURED, "", (0.5, 0.5), 0, 1e-7)])
    answer = advice(client, f"layer={LAYER}&device=other-gpu")
    assert (answer["variant"], answer["source"], answer["model"]) == (SLOW, "measured", None)
    said = is_problem(client.get(f"/v1/advice?layer={UNSEEN}&device=other-gpu"), 409, "no-advice")
    n_unknown = sum(exclusion["reason"].startswith("not measured on this layer") for exclusion in said["excluded"])
    asked = f"{UNSEEN}-float32-nchw on other-gpu"
    assert said["summary"] == f"nothing is known of {n_unknown} variants that may run {asked}"
    assert said["detail"].count("not measured on this layer") == 1, "what is out for one reason is named together"
    assert {"variant": SLOW, "reason": "not measured on this layer, and there is no model of other-gpu"} in said[
        "excluded"
    ]


def test_a_store_that_cannot_be_read_is_asked_once_for_one_answer(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall, asked = client.app.state.service.recall, []

    def refuse(device_id: str) -> int:
        asked.append(device_id)
        raise StoreError("the store cannot be read: somebody has locked its tables")

    monkeypatch.setattr(recall, "version", refuse)
    said = is_problem(client.get("/v1/advice?layer=9-1-3-8-8"), 503, "store-error")
    assert "locked its tables" in said["detail"]
    assert asked == [GPU.id]


@pytest.mark.parametrize(("kind", "waits"), [("postgresql", "1s"), ("sqlite", 5000)])
def test_who_reads_waits_for_no_lock_of_postgresql_longer_than_a_second(
    tmp_path: Path, kind: str, waits: str | int
) -> None:
    asked = {"postgresql": "SHOW lock_timeout", "sqlite": "PRAGMA busy_timeout"}[kind]
    with new_database(kind, tmp_path) as url, serving(tmp_path, database_url=url) as own:
        service = own.app.state.service
        with service.records.store.engine.begin() as connection:
            assert connection.exec_driver_sql(asked).scalar() == waits
        with service.store.engine.begin() as connection:
            assert connection.exec_driver_sql(asked).scalar() in ("5s", 5000)
