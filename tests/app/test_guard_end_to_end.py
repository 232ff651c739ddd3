"""A real server that others can reach: HTTPS, tokens made by the command, JSON in the log; a browser that signs in."""

from __future__ import annotations

import json
import os
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from playwright.sync_api import expect

from tests.app.browser import PHONE, Visitor, chromium
from tests.app.serving import TIMES_MS, keep_tree, small_tree
from tests.processes import PATIENT, eventually, free_port

COMMAND = Path(sys.executable).with_name("conv-advisor")
LAYER = "14-1-3-256-128"


def token(file: Path, name: str, scopes: str) -> str:
    """Make a token by the command, as whoever runs the service does."""
    command = [COMMAND, "token", name, "--scopes", scopes, "--file", file]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (made,) = done.stdout.splitlines()
    assert made not in file.read_text()
    assert made not in done.stderr
    return made


@contextmanager
def serving(home: Path, http: httpx.Client, port: int, *arguments: str, **environment: str) -> Iterator[Path]:
    """A server process that answers; its log."""
    settings = {f"CONV_ADVISOR_{name}": value for name, value in environment.items()}
    command = [COMMAND, "serve", "--device", "cpu", "--port", str(port), "--home", home, *arguments]
    log = home / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(command, env=os.environ | PATIENT | settings, stdout=out, stderr=out)
    try:
        assert eventually(lambda: _is_up(http)), log.read_text()
        yield log
    finally:
        process.terminate()
        process.wait(300)


def _is_up(http: httpx.Client) -> bool:
    try:
        return http.get("/livez").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def home(tmp_path: Path) -> Path:
    keep_tree(tmp_path, small_tree(TIMES_MS))
    return tmp_path


def test_the_command_keeps_a_hash_and_refuses_a_name_twice(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token(file, "prometheus", "read")
    token(file, "ci", "read,measure")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [line.split()[:2] for line in file.read_text().splitlines()] == [
        ["prometheus", "read"],
        ["ci", "read,measure"],
    ]
    for arguments, said in (
        (("ci", "--file", file), "name is 'ci'; allowed: one that no token"),
        (("new", "--scopes", "read,rule", "--file", file), "scopes is 'rule'; allowed: read, measure, administer"),
        (("a b", "--file", file), "name is "),
    ):
        refused = subprocess.run([COMMAND, "token", *arguments], capture_output=True, text=True, check=False)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr.startswith(f"conv-advisor: {said}")
    shown = subprocess.run([COMMAND, "token", "new"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("cadv_")
    assert shown.stderr.startswith("new read sha256:")


def test_beyond_loopback_it_is_https_tokens_and_nothing_secret_in_the_log(home: Path) -> None:
    authority, port = trustme.CA(), free_port()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(str(home / "key.pem"))
    for place, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(str(home / "cert.pem"), append=place > 0)
    trusted = ssl.create_default_context()
    authority.configure_trust(trusted)
    tokens = home / "tokens"
    reader = token(tokens, "reader", "read")
    settings = {"TOKENS_FILE": str(tokens), "LOG_FORMAT": "json", "LOG_LEVEL": "debug"}
    settings |= {"TLS_CERTIFICATE": str(home / "cert.pem"), "TLS_KEY": str(home / "key.pem")}
    with (
        httpx.Client(base_url=f"https://localhost:{port}", verify=trusted, timeout=300) as http,
        serving(home, http, port, "--host", "0.0.0.0", **settings) as log,  # noqa: S104 - behind tokens
    ):
        assert http.get(f"/v1/models?token={reader}").status_code == 401
        allowed = http.get(f"/v1/advice?layer={LAYER}", headers={"authorization": f"Bearer {reader}"})
        assert allowed.status_code == 200
        assert allowed.headers["strict-transport-security"] == "max-age=31536000"
        newcomer = token(tokens, "newcomer", "read,measure")
        bearer = {"authorization": f"Bearer {newcomer}"}
        assert eventually(lambda: http.get("/v1/models", headers=bearer).status_code == 200)
        tokens.write_text(
            "\n".join(line for line in tokens.read_text().splitlines() if not line.startswith("newcomer"))
        )
        assert eventually(lambda: http.get("/v1/models", headers=bearer).status_code == 401)
        signed = http.post("/sign-in", data={"token": reader})
        assert signed.headers["set-cookie"].startswith("__Host-conv-advisor-token=")
    text = log.read_text()
    assert reader not in text
    assert newcomer not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    routes = {line["route"] for line in lines if line["logger"] == "conv_advisor.app.access"}
    assert {"/v1/advice", "/v1/models", "/sign-in", "/livez"} <= routes
    assert LAYER not in text


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Playwright's pipes, when it ends
def test_a_person_signs_in_and_reads_the_api_and_no_other_host_is_asked(home: Path) -> None:
    port, tokens = free_port(), home / "tokens"
    reader = token(tokens, "reader", "read")
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as http,
        serving(home, http, port, TOKENS_FILE=str(tokens)),
        chromium() as browser,
    ):
        visitor = Visitor(browser, f"http://127.0.0.1:{port}")
        page = visitor.open(f"/?layer={LAYER}")
        expect(page).to_have_title("Sign in · conv-advisor")
        page.get_by_label("Token").fill("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").filter(has_text="Nobody has this token")).to_be_visible()
        page.get_by_label("Token").fill(reader)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"**/?layer={LAYER}")
        assert page.evaluate("document.cookie").find("token") == -1, "no script can read it"
        _pictured(visitor, "signed-in")
        page.goto(f"{visitor.address}/models")
        page.get_by_role("button", name="Retrain").first.click()
        expect(page.get_by_text("this needs the scope 'administer'").first).to_be_visible()
        page.goto(f"{visitor.address}/docs")
        operation = page.locator("[id*=list_models]").first
        expect(operation).to_be_visible()
        operation.click()
        expect(page.get_by_role("button", name="Try it out")).to_be_visible()
        page.get_by_role("button", name="Try it out").click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".live-responses-table")).to_contain_text("200")
        _pictured(visitor, "docs")
        page.goto(f"{visitor.address}/models")
        page.get_by_role("button", name="Sign out").click()
        page.wait_for_url("**/sign-in")
        page.goto(f"{visitor.address}/models")
        expect(page).to_have_title("Sign in · conv-advisor")
        _pictured(visitor, "sign-in")
        visitor.check()
        visitor.close()
        phone = Visitor(browser, f"http://127.0.0.1:{port}", viewport=PHONE, color_scheme="dark")
        small = phone.open("/sign-in")
        assert small.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        _pictured(phone, "sign-in-phone")
        phone.check()
        phone.close()


def _pictured(visitor: Visitor, name: str) -> None:
    """Keep a screenshot where somebody wants to look at it."""
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        visitor.picture(Path(folder) / f"{name}.png")
