"""GET /v1/pareto, /v1/neighbours and /v1/snippets, and how far advice can be trusted, through the real application."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from conv_advisor.app.service.neighbours import Neighbourhoods
from conv_advisor.app.snippets.writer import RULE
from conv_advisor.data.measurement import Measurement, Outcome
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.records import Records
from conv_advisor.data.store import Store
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.models.tree.arrays import DOMAIN
from conv_advisor.models.tree.domain import learn_domain
from conv_advisor.models.tree.file import TreeModel, with_card
from tests.app.serving import FAST, GPU, LEAN, SLOW, TIMES_MS, Client, is_problem, keep_tree, serving, small_tree
from tests.app.test_snippets import run
from tests.fakes import SMALL_DEVICE
from tests.fakes import small_tree as cpu_tree

TRAINED = "28-8-3-64-32"
UNSEEN = f"layer={TRAINED}&device=fake-gpu"
OUTSIDE = "layer=28-8-3-64-32&groups=32&device=fake-gpu"
PLAN = {"engine": 0, "knobs": {"13": 1}, "heuristic": "a", "index": 0}
ENGINE = "cudnn.graph.eng0"


def tree_of(*layers: str) -> TreeModel:
    """One that says where it was trained."""
    sizes, domain = learn_domain([ConvProblem.parse(layer) for layer in layers])
    return with_card(small_tree(TIMES_MS, **{DOMAIN: sizes}), domain=domain)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with serving(tmp_path_factory.mktemp("home"), has_tree=False) as client:
        service = client.app.state.service
        keep_tree(service.settings.models_home, tree_of(TRAINED, "14-8-3-64-32"))
        keep_tree(service.settings.models_home, cpu_tree(0.5))
        for layer, ms in (("28-8-3-64-16", 0.1), ("28-8-3-128-32", 0.2), ("28-8-3-512-256", 0.3)):
            service.store.append(measured(layer, ms))
        yield client


def measured(layer: str, ms: float, **changes: str) -> list[Measurement]:
    """FAST takes so long on it, SLOW twice as long, LEAN refuses."""
    problem = ConvProblem.parse(layer, **changes)
    times = {FAST: (ms,) * 3, SLOW: (2 * ms,) * 3}
    rows = [Measurement(problem, name, GPU, Outcome.MEASURED, "", each, 0, 1e-7) for name, each in times.items()]
    return [*rows, Measurement(problem, LEAN, GPU, Outcome.NOT_SUPPORTED, "as recorded")]


def answer(client: Client, path: str) -> dict:
    response = client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def test_advice_says_how_far_it_can_be_trusted(client: Client) -> None:
    trust = answer(client, f"/v1/advice?{UNSEEN}")["trust"]
    assert 0 < trust["confidence"] <= 1
    assert (trust["within"], trust["is_calibrated"], trust["abstains"], trust["reason"]) == (0.05, False, False, None)
    assert trust["distance"] == 0 < trust["limit"]


def test_outside_its_domain_the_model_abstains_everywhere(client: Client) -> None:
    reason = "groups is 32; trained on 1 alone"
    for path in ("advice", "pareto"):
        trust = answer(client, f"/v1/{path}?{OUTSIDE}")["trust"]
        assert (trust["abstains"], trust["confidence"], trust["reason"]) == (True, None, reason)
    asked = {"layers": [{"layer": TRAINED, "groups": 32}], "device": "fake-gpu", "ranking": True}
    (one,) = client.post("/v1/advice", json=asked).json()["advice"]
    assert one["trust"]["reason"] == reason
    page = client.get(f"/?{UNSEEN}&by=fields&n=8&c=32&h=28&w=28&k=64&r=3&s=3&pad_h=1&pad_w=1&groups=32").text
    assert "The model abstains" in page
    assert "groups is 32; trained on 1 alone" in page


def test_the_front_is_marked_and_the_rest_is_there_too(client: Client) -> None:
    weighed = answer(client, f"/v1/pareto?{UNSEEN}")
    assert [point["variant"] for point in weighed["points"]] == [FAST, SLOW, LEAN]
    assert [point["variant"] for point in weighed["points"] if point["is_on_front"]] == weighed["front"]
    assert weighed["front"] == [FAST], "nothing is smaller, more accurate or more deterministic"
    assert {point["error_source"] for point in weighed["points"]} == {"allowed"}
    assert weighed["other_layout"]["layout"] == "nhwc"
    assert weighed["other_layout"]["speedup"] == pytest.approx(1.0)
    assert weighed["other_layout"]["speedup_converted"] < 1
    assert weighed["trust"] == answer(client, f"/v1/advice?{UNSEEN}")["trust"]


def test_measured_errors_are_weighed_and_limited(client: Client) -> None:
    problem = ConvProblem.parse("14-8-3-64-32")
    errors = {FAST: 2e-6, SLOW: 2e-7}
    client.app.state.service.store.append(
        Measurement(problem, name, GPU, Outcome.MEASURED, "", (TIMES_MS[name],) * 5, 0, error)
        for name, error in errors.items()
    )
    asked = f"/v1/pareto?layer={problem.short}&device=fake-gpu"
    weighed = answer(client, asked)
    assert {
        each["variant"]: each["max_error"] for each in weighed["points"] if each["error_source"] == "measured"
    } == errors
    assert weighed["front"][:2] == [FAST, SLOW], "SLOW is ten times as accurate"
    limited = answer(client, f"{asked}&max_error=1e-6")
    assert [point["variant"] for point in limited["points"]] == [SLOW]
    reasons = {exclusion["variant"]: exclusion["reason"] for exclusion in limited["excluded"]}
    assert reasons[FAST] == "error is up to 2e-06 (measured), above the limit of 1e-06"
    is_problem(client.get(f"{asked}&max_error=1e-9"), 409, "no-advice")
    fast = answer(client, f"{asked}&max_slowdown=1.5")
    assert [point["variant"] for point in fast["points"]] == [FAST]
    assert {exclusion["variant"]: exclusion["reason"] for exclusion in fast["excluded"]}[SLOW].startswith(
        "takes 2 times the fastest's"
    )


@pytest.mark.parametrize(
    "wrong",
    ["max_error=0", "max_error=nan", "max_error=2", "max_error=x", "max_slowdown=0.99", "max_slowdown=inf", "front=1"],
)
def test_a_limit_that_is_none_is_refused(client: Client, wrong: str) -> None:
    document = is_problem(client.get(f"/v1/pareto?{UNSEEN}&{wrong}"), 422, "unprocessable-entity")
    assert wrong.partition("=")[0] in document["errors"][0]["field"]


def test_neighbours_are_those_that_were_measured_nearest_first(client: Client) -> None:
    nearest = answer(client, f"/v1/neighbours?{UNSEEN}&count=2")
    assert [near["layer"] for near in nearest["neighbours"]] == ["28-8-3-128-32", "28-8-3-64-16"]
    near = nearest["neighbours"][0]
    assert (near["distance"], near["variant"], near["n_measured"]) == (pytest.approx(1.0), FAST, 2)
    assert (near["time_ms"], near["advised_slowdown"]) == (pytest.approx(0.2), pytest.approx(1.0))
    assert (nearest["variant"], nearest["source"]) == (FAST, "predicted")
    assert answer(client, f"/v1/neighbours?{UNSEEN}&dtype=float16")["neighbours"] == []
    is_problem(client.get(f"/v1/neighbours?{UNSEEN}&count=0"), 422, "unprocessable-entity")
    is_problem(client.get(f"/v1/neighbours?{UNSEEN}&count=51"), 422, "unprocessable-entity")


def test_new_measurements_become_neighbours_before_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ConvProblem.parse(TRAINED)
    with Store(f"sqlite:///{tmp_path / 'own.db'}") as store:
        near = Neighbourhoods(Records(store))

        def layers() -> list[str]:
            return [each.layer for each in near.of(asked, GPU.id, count=5, advised=FAST)]

        assert layers() == []
        store.append(measured("28-8-3-64-16", 0.1))
        assert layers() == [], "it looks again after a while, not each time"
        monkeypatch.setattr("conv_advisor.app.service.neighbours.LOOK_AGAIN_S", 0.0)
        assert layers() == ["28-8-3-64-16"]
        store.append([Measurement(asked, FAST, GPU, Outcome.PRUNED, "", (9.0,))])
        assert layers() == ["28-8-3-64-16"]


def test_a_snippet_of_a_cpu_variant_runs(client: Client) -> None:
    snippet = answer(client, f"/v1/snippets?layer=8-2-3-6-4&device={SMALL_DEVICE.id}")
    assert (snippet["variant"], snippet["language"], snippet["rule"]) == ("cpu.direct", "python", None)
    assert snippet["plan"]["id"] == "cpu.direct"
    names = run(snippet["snippet"])
    problem = ConvProblem.parse("8-2-3-6-4")
    expected = reference.convolve(problem, names["x"], names["weight"])
    assert comparison.max_error(np.asarray(names["y"]), expected) <= tolerance(problem)


def test_a_snippet_rebuilds_the_plan_that_was_measured_else_it_says_its_rule(client: Client) -> None:
    problem = ConvProblem.parse("20-8-3-64-32")
    row = Measurement(problem, ENGINE, GPU, Outcome.MEASURED, "", (0.001,) * 5, 0, 1e-7, PLAN)
    client.app.state.service.store.append([row, *measured(problem.short, 0.1)])
    snippet = answer(client, f"/v1/snippets?layer={problem.short}&device=fake-gpu")
    assert (snippet["variant"], snippet["plan"], snippet["rule"]) == (ENGINE, {"engine": 0, "knobs": {"13": 1}}, None)
    assert "graph.create_execution_plan(0, KNOBS)" in snippet["snippet"]
    assert snippet["languages"] == ["python", "torch"]
    other = answer(client, f"/v1/snippets?layer={problem.short}&device=fake-gpu&language=torch")
    assert "import torch" in other["snippet"]


def test_a_named_variant_gets_its_snippet_if_it_applies(client: Client) -> None:
    snippet = answer(client, f"/v1/snippets?{UNSEEN}&variant={SLOW}")
    assert (snippet["variant"], snippet["plan"]["id"]) == (SLOW, SLOW)
    legacy = answer(client, f"/v1/snippets?{UNSEEN}")
    assert (legacy["language"], legacy["plan"]["math_type"]) == ("c", "CUDNN_FMA_MATH")
    document = is_problem(client.get(f"/v1/snippets?{UNSEEN}&variant=cuda.pointwise"), 409, "not-applicable")
    assert document["variant"] == "cuda.pointwise"
    assert "3x3" in document["reason"]
    is_problem(client.get(f"/v1/snippets?{UNSEEN}&variant=cuda.none"), 404, "unknown-variant")
    refused = is_problem(client.get(f"/v1/snippets?{UNSEEN}&variant={SLOW}&language=c"), 400, "invalid-input")
    assert (refused["field"], refused["allowed"]) == ("language", f"python, torch for {SLOW}")
    is_problem(client.get(f"/v1/snippets?{UNSEEN}&language=cobol"), 422, "unprocessable-entity")


def test_a_variant_that_is_predicted_for_an_engine_has_the_rule_that_measurements_had(tmp_path: Path) -> None:
    with serving(tmp_path, has_tree=False) as client:
        keep_tree(client.app.state.service.settings.models_home, small_tree({ENGINE: 0.001, FAST: 0.01}))
        snippet = answer(client, f"/v1/snippets?{UNSEEN}")
        assert (snippet["variant"], snippet["rule"]) == (ENGINE, RULE)
        assert snippet["plan"] == {"engine": 0, "knobs": None}


def test_the_page_shows_the_front_the_neighbours_and_the_program(client: Client) -> None:
    page = client.get(f"/?{UNSEEN}&by=short").text
    for part in ('id="tradeoffs"', 'id="neighbours"', 'id="snippet"', "on the front", "28-8-3-128-32"):
        assert part in page
    assert "likely to be within 5 %" in page
    assert "cudnnConvolutionForward" in page
    assert "NHWC would be 1.00× faster" in page
    torch = client.get(f"/?{UNSEEN}&language=torch").text
    assert "import torch" in torch
    assert "cudnnConvolutionForward" not in torch
    limited = client.get(f"/?{UNSEEN}&max_error=1e-12")
    assert limited.status_code == 200
    assert "has an error of at most 1e-12" in limited.text
    assert client.get(f"/?{UNSEEN}&max_error=much").status_code == 400
    fastest = client.get(f"/?{UNSEEN}&max_slowdown=1").text
    assert 'name="max_slowdown" value="1"' in fastest
    assert "off the front" not in fastest
    assert client.get(f"/?{UNSEEN}&max_slowdown=0.5").status_code == 400


@pytest.mark.parametrize("path", ["pareto", "neighbours", "snippets"])
@pytest.mark.parametrize(
    ("query", "status", "kind"),
    [
        ("layer=fourteen", 400, "invalid-layer-name"),
        ("layer=14-1-3-256-128&device=none", 404, "unknown-device"),
        ("layer=14-1-3-256-128&nonsense=1", 422, "unprocessable-entity"),
    ],
)
def test_what_is_wrong_is_said(client: Client, path: str, query: str, status: int, kind: str) -> None:
    is_problem(client.get(f"/v1/{path}?{query}"), status, kind)
