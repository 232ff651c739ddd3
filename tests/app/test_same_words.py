"""What every surface says of trust and exclusions is what the advice holds, and never two things at once."""

from __future__ import annotations

import html
import json
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from math import floor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.cli import cli
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from tests.app.serving import FAST, GPU, LEAN, REFUSED, SLOW, TIMES_MS, Client, keep_tree, serving
from tests.app.test_service_details import tree_of

TABLE = {"raw": [0.2, 0.5, 0.99], "observed": [0.5, 0.8, 0.97]}
LIMITS: tuple[dict[str, Any], ...] = ({}, {"max_workspace_bytes": 0}, {"deterministic": True})


def layers(count: int) -> list[ConvProblem]:
    draw = random.Random(0)  # noqa: S311 - a repeatable choice, no secret
    return [
        ConvProblem.parse(
            f"{draw.choice((7, 14, 28, 300))}-{draw.choice((1, 8, 64))}-{draw.choice((1, 3, 5))}"
            f"-{draw.choice((1, 64, 100))}-{draw.choice((3, 32))}",
            layout=draw.choice(("nchw", "nhwc")),
        )
        for _ in range(count)
    ]


def told(problem: ConvProblem, draw: random.Random) -> list[Measurement]:
    """What was measured of it: nothing, one of the fast ones, all three, or refusals."""
    times = {name: (ms, ms * 1.01, ms * 0.99) for name, ms in TIMES_MS.items()}
    rows = [Measurement(problem, name, GPU, Outcome.MEASURED, "", samples, 0, 1e-7) for name, samples in times.items()]
    out = [Measurement(problem, name, GPU, Outcome.NOT_SUPPORTED, "status <9> & more") for name in (REFUSED, SLOW)]
    return draw.choice(([], rows[:1], rows, [*rows[:1], *out], [*rows[2:], *out]))


@pytest.fixture(params=["calibrated", "rough", "no tree"])
def client(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A server, and library and command line with the same home."""
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path))
    library._local.cache_clear()
    with serving(tmp_path, has_tree=False) as client:
        if request.param != "no tree":
            tree = tree_of("14-8-3-64-32", "28-1-1-64-32", "7-1-3-64-3")
            if request.param == "calibrated":
                tree = replace(tree, card={**tree.card, "confidence": TABLE})
            keep_tree(client.app.state.service.settings.models_home, tree)
        yield client
    library._local.cache_clear()


def test_every_surface_says_what_the_advice_holds(client: Client) -> None:
    draw, kinds = random.Random(1), set[str]()  # noqa: S311 - a repeatable choice, no secret
    for problem in layers(12):
        client.app.state.service.store.append(told(problem, draw))
        limits = draw.choice(LIMITS)
        asked = {"layer": problem.short, "layout": str(problem.layout), "device": GPU.id}
        response = client.get("/v1/advice", params={**asked, **limits})
        answer = response.json()
        listed = client.get("/v1/variants", params=asked).json()["variants"]
        page = page_of(client, asked, limits)
        if response.status_code == 409:
            reasons = {exclusion["variant"]: exclusion["reason"] for exclusion in answer["excluded"]}
            assert_listed(listed, reasons)
            assert all(reason in page for reason in reasons.values())
            continue
        library._local.cache_clear()
        advice = conv_advisor.advise(problem, device=GPU.id, **limits)
        assert advice.to_dict() == answer
        kinds.add(kind_of(advice))
        assert_agrees_with_itself(advice)
        reasons = {exclusion.variant: exclusion.reason for exclusion in advice.excluded}
        assert_listed(listed, reasons)
        notebook = html.unescape(advice._repr_html_())
        printed = " ".join(command_line(asked, limits).split())
        for surface in (page, notebook, repr(advice), printed):
            assert advice.trusted in surface
        for surface in (page, notebook):
            assert all(f"{variant}" in surface and reason in surface for variant, reason in reasons.items())
        bulk = client.post("/v1/advice", json={"layers": [problem.short], "ranking": True} | _body(asked, limits))
        assert bulk.json()["advice"][0]["trust"] == answer["trust"]
        assert bulk.json()["advice"][0]["excluded"] == answer["excluded"]
    has_tree = client.app.state.service.advisor(GPU.id).model is not None
    assert len(kinds) > has_tree, kinds


def page_of(client: Client, asked: dict[str, str], limits: dict[str, Any]) -> str:
    """The page's text; its form takes the workspace in MiB."""
    typed = {"workspace_mib" if name == "max_workspace_bytes" else name: value for name, value in limits.items()}
    return html.unescape(client.get("/", params={**asked, **typed, "by": "short"}).text.replace("<wbr>", ""))


def _body(asked: dict[str, str], limits: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in asked.items() if name != "layer"} | limits


def command_line(asked: dict[str, str], limits: dict[str, Any]) -> str:
    words = ["advise", asked["layer"], "--layout", asked["layout"], "--device", asked["device"]]
    words += ["--deterministic"] * ("deterministic" in limits)
    words += ["--max-workspace-bytes", "0"] * ("max_workspace_bytes" in limits)
    found = CliRunner().invoke(cli, words, env={"COLUMNS": "400"})
    assert found.exit_code == 0, found.output
    return found.stdout


def kind_of(advice: library.LayerAdvice) -> str:
    trust = advice.trust
    return f"abstains {trust.abstains}, unknown {trust.confidence is None}, calibrated {trust.is_calibrated}"


def assert_agrees_with_itself(advice: library.LayerAdvice) -> None:
    """Nothing is ranked and out, all of the device's variants are one or the other, and the words have the numbers."""
    ranked, out = {choice.variant for choice in advice.ranking}, {exclusion.variant for exclusion in advice.excluded}
    assert not ranked & out
    assert ranked | out == {each.id for each in catalog.for_device_kind(GPU.kind)}
    trust, words = advice.trust, advice.trusted
    assert not (trust.abstains and trust.confidence is not None), "sure, and yet it abstains"
    assert ("guess" in words) == (trust.confidence is None)
    assert ("likely" in words) == (trust.confidence is not None)
    assert (trust.reason is not None and trust.reason in words) or trust.confidence is not None
    if trust.confidence is not None:
        assert (f"about {trust.n_unknown} more variants" in words) == (trust.n_unknown > 1)
    for said in re.findall(r"(\d+) % likely to be within", words):
        assert int(said) == min(floor(100 * trust.confidence + 1e-9), 99)
    for each in advice.excluded:
        for said in re.findall(r"(\d+) % likely to run", each.reason):
            assert int(said) < 50


def assert_listed(listed: list[dict[str, Any]], reasons: dict[str, str]) -> None:
    """A variant that is out on a layer, whatever the limits, is out for the same reason in the list of variants."""
    of_limits = ("not deterministic", "workspace is", "not measured on this layer")
    for each in listed:
        if each["device_kind"] != GPU.kind:
            continue
        reason = reasons.get(each["id"])
        if reason is None:
            assert each["applies"], each
        elif not reason.startswith(of_limits):
            assert (each["applies"], each["reason"]) == (False, reason)


def test_the_limits_of_a_trade_off_do_not_make_the_advice_surer(client: Client) -> None:
    """What a limit of error leaves out is not what the table's confidence speaks of without saying so."""
    problem = ConvProblem.parse("14-8-3-64-32")
    errors = {FAST: 2e-6, SLOW: 2e-7, LEAN: 2e-7}
    client.app.state.service.store.append(
        Measurement(problem, name, GPU, Outcome.MEASURED, "", (TIMES_MS[name],) * 5, 0, error)
        for name, error in errors.items()
    )
    asked = {"layer": problem.short, "device": GPU.id, "max_error": 1e-6}
    answer = client.get("/v1/pareto", params=asked).json()
    assert answer["variant"] == FAST
    assert FAST in {exclusion["variant"] for exclusion in answer["excluded"]} - {
        each["variant"] for each in answer["points"]
    }
    words = ["advise", problem.short, "--device", GPU.id, "--pareto", "--max-error", "1e-6"]
    printed = CliRunner().invoke(cli, words).stdout
    assert f"Without the limits of error and slowdown: {FAST} is" in printed
    assert json.loads(CliRunner().invoke(cli, [*words, "--json"]).stdout) == answer
