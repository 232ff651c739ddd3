"""The rules and the dashboard in deploy/, in a real Prometheus that scrapes a real server behind a token."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from conv_advisor.app.guard.tokens import entry_of, make_token
from conv_advisor.app.wire.caller import Scope
from conv_advisor.data.measurement import Device
from tests.app.serving import keep_tree, small_tree
from tests.processes import PATIENT, eventually, free_port

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "conv-advisor.json"
COMMAND = Path(sys.executable).with_name("conv-advisor")
LAYERS = ("6-1-3-4-3", "7-1-3-4-3", "8-1-3-4-3")
VARIABLES = {"$__rate_interval": "30s", "$instance": ".*"}


@pytest.fixture(scope="module")
def tools() -> dict[str, str]:
    """Where prometheus and promtool are; skipped where they are not, or failed if REQUIRE_PROMETHEUS is 1."""
    found = {name: shutil.which(name) for name in ("prometheus", "promtool")}
    if not all(found.values()):
        if os.environ.get("REQUIRE_PROMETHEUS") == "1":
            pytest.fail("REQUIRE_PROMETHEUS=1, but there is no prometheus")
        pytest.skip("no prometheus; .ci/run installs Debian's")
    return {name: str(path) for name, path in found.items()}


def dashboard_expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def alert_expressions() -> list[str]:
    """The expression of every alert, as promtool's own format of the rules has them."""
    lines = (DEPLOY / "alerts.yml").read_text()
    found = re.findall(r"expr: (?:\|\n((?: {10,}.*\n)+)|(.*)\n)", lines)
    return [" ".join((block or line).split()) for block, line in found]


def selectors(expression: str) -> set[str]:
    """The series that an expression looks at, whatever it then demands of them."""
    found = set(re.findall(r"((?:conv_advisor_|process_|up\b)\w*(?:\{[^}]*\})?)", expression))
    return {selector for selector in found if not selector.startswith("process_") or "{" in selector}


def run(*command: str | Path, folder: Path = DEPLOY) -> str:
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_rules_and_configuration_are_valid(tools: dict[str, str]) -> None:
    assert f"{len(alert_expressions())} rules found" in run(tools["promtool"], "check", "rules", "alerts.yml")
    assert "SUCCESS" in run(tools["promtool"], "check", "config", "prometheus.yml")


def test_every_alert_fires_where_it_should_and_nowhere_else(tools: dict[str, str]) -> None:
    run(tools["promtool"], "test", "rules", "alerts_test.yml")
    tested = (DEPLOY / "alerts_test.yml").read_text()
    names = re.findall(r"alert: (\w+)", (DEPLOY / "alerts.yml").read_text())
    assert len(names) == len(alert_expressions()) > 5
    for name in names:
        assert f"alertname: {name}, exp_alerts: []" in tested, "silent where all is well"
        assert f'{{alertname="{name}"}}' in tested, "fires where something is wrong"


def test_a_broken_rule_does_not_pass(tools: dict[str, str], tmp_path: Path) -> None:
    rules, tests = tmp_path / "alerts.yml", tmp_path / "alerts_test.yml"
    known = yaml.safe_load((DEPLOY / tests.name).read_text())
    (wrong,) = (each for each in known["tests"] if each["name"] == "everything is wrong")
    first = {name: part for name, part in wrong.items() if name != "promql_expr_test"}  # which is of a day and more
    tests.write_text(yaml.safe_dump(known | {"tests": [first]}))
    rules.write_text((DEPLOY / rules.name).read_text())
    run(tools["promtool"], "test", "rules", tests.name, folder=tmp_path)
    rules.write_text(rules.read_text().replace("== 0", "== 1", 1))
    with pytest.raises(AssertionError, match="ConvAdvisorDown"):
        run(tools["promtool"], "test", "rules", tests.name, folder=tmp_path)


@dataclass
class Query:
    """A running Prometheus, to be asked."""

    http: httpx.Client

    def __call__(self, expression: str) -> list[dict[str, Any]]:
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        answer = self.http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def some(self, expression: str) -> list[dict[str, Any]]:
        """What there is, which is nothing from a scrape that took too long until the next."""
        found: list[dict[str, Any]] = []
        assert eventually(lambda: found.extend(self(expression)) or found), expression
        return found


def answers(http: httpx.Client, path: str) -> bool:
    try:
        return http.get(path).status_code == 200
    except httpx.TransportError:
        return False


@contextmanager
def process(command: list[str | Path], log: Path, **environment: str) -> Iterator[None]:
    with log.open("ab") as out:
        running = subprocess.Popen(command, env=os.environ | environment, stdout=out, stderr=out)
    try:
        yield
    finally:
        running.terminate()
        try:
            running.wait(120)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@pytest.fixture(scope="module")
def query(tools: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Query]:
    """Prometheus with what ships, but for interval, address and token, and a server with traffic."""
    home, port, own = tmp_path_factory.mktemp("prometheus"), free_port(), free_port()
    tokens = {scope: make_token() for scope in Scope}
    (home / "tokens").write_text("\n".join(entry_of(scope, [scope], token) for scope, token in tokens.items()))
    (home / "token").write_text(tokens[Scope.READ])
    (home / "alerts.yml").write_text((DEPLOY / "alerts.yml").read_text())
    shipped = (DEPLOY / "prometheus.yml").read_text()
    changed = shipped.replace("15s", "1s").replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("    # ", "    ")
    (home / "prometheus.yml").write_text(changed)
    flags = [f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'series'}"]
    flags += [f"--web.listen-address=127.0.0.1:{own}", "--log.level=warn"]
    serve = [COMMAND, "serve", "--device", "cpu", "--port", str(port), "--home", home]
    settings = {"CONV_ADVISOR_TOKENS_FILE": str(home / "tokens")}
    settings |= PATIENT
    with (
        process(serve, home / "server.log", **settings),
        process([tools["prometheus"], *flags], home / "prometheus.log"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{own}", timeout=300) as prometheus,
    ):
        assert eventually(lambda: answers(server, "/readyz")), (home / "server.log").read_text()
        assert eventually(lambda: answers(prometheus, "/-/ready")), (home / "prometheus.log").read_text()
        ask = Query(prometheus)
        keep_own_tree(server, home, tokens)
        traffic(server, tokens)
        assert eventually(lambda: ask("conv_advisor_advised_slowdown_ratio_count")), (home / "server.log").read_text()
        for _ in range(2):  # a rate takes two scrapes
            wait_for_scrapes(ask)
            traffic(server, tokens)
        wait_for_scrapes(ask)
        yield ask


def wait_for_scrapes(ask: Query, count: int = 2) -> None:
    """Until the server was scraped so many times more."""

    def scraped() -> int:
        return sum(int(float(each["value"][1])) for each in ask("count_over_time(up[1h])"))

    until = scraped() + count
    assert eventually(lambda: scraped() >= until)


def keep_own_tree(server: httpx.Client, home: Path, tokens: dict[Scope, str]) -> None:
    """Put a tree of this very CPU in charge, so that there are predictions to compare with."""
    read = {"authorization": f"Bearer {tokens[Scope.READ]}"}
    found: list[dict[str, Any]] = []

    def is_there() -> bool:
        devices = server.get("/v1/devices", headers=read).json()["devices"]
        found.extend(device for device in devices if device["is_worker"])
        return bool(found)

    assert eventually(is_there)
    own = found[0]
    known = {name: own[name] for name in ("id", "name", "kind") if name in own}
    keep_tree(home, small_tree({"cpu.gemm": 0.01, "cpu.direct": 0.02, "cpu.fft": 0.04}, Device(**known)))


def traffic(server: httpx.Client, tokens: dict[Scope, str]) -> None:
    """Something of everything, by everybody."""
    headers = {scope: {"authorization": f"Bearer {token}"} for scope, token in tokens.items()}
    for layer in LAYERS:
        assert server.get(f"/v1/advice?layer={layer}", headers=headers[Scope.READ]).status_code == 200
        body = {"layer": layer, "variant": "all"}
        assert server.post("/v1/convolutions", json=body, headers=headers[Scope.MEASURE]).status_code == 200
    assert server.get("/nowhere", headers=headers[Scope.READ]).status_code == 404
    assert server.post("/sign-in", data={"token": "wrong"}).status_code == 401
    assert server.get("/metrics").status_code == 401, "nobody scrapes without a token"


@pytest.mark.slow
@pytest.mark.parametrize("expression", dashboard_expressions())
def test_every_panel_of_the_dashboard_shows_something(query: Query, expression: str) -> None:
    assert query.some(expression)


@pytest.mark.slow
@pytest.mark.parametrize("expression", alert_expressions())
def test_every_alert_looks_at_something_and_none_fires(query: Query, expression: str) -> None:
    looked_at = selectors(expression)
    assert looked_at
    for selector in looked_at:
        silent = selector.replace('status="5xx"', 'status="2xx"')  # there are no errors of ours, and that is well
        assert query.some(silent)
    if "_ratio_" not in expression and "_bucket" not in expression:  # a made-up tree is off, and this CPU may be slow
        assert eventually(lambda: query(expression) == []), expression  # a scrape may have taken too long


@pytest.mark.slow
def test_no_metric_says_more_than_its_labels_may(query: Query) -> None:
    routes = {each["metric"]["route"] for each in query.some("conv_advisor_http_request_duration_seconds_count")}
    assert {"/v1/advice", "/v1/convolutions", "/sign-in", "/metrics", "other"} <= routes
    assert all(route == "other" or route.startswith("/") for route in routes)
    assert "/nowhere" not in routes
    (version,) = query.some("conv_advisor_info")
    assert set(version["metric"]) == {"__name__", "instance", "job", "version"}
