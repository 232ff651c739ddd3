"""``conv_advisor.advise``: the answers of a server and of the command line, in a program of one's own."""

from __future__ import annotations

import copy
import html
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.cli import cli
from conv_advisor.data.errors import InvalidInput, InvalidLayerName, InvalidProblem, NoAdvice, UnknownDevice
from conv_advisor.data.measurement import Measurement, Outcome
from tests.app.serving import FAST, GPU, LAYER, LEAN, SLOW, SMALL, Client, serving

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, of which the library has seen nothing."""
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path))
    library._local.cache_clear()
    yield
    library._local.cache_clear()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path) as client:
        yield client


def measure(server: Client) -> None:
    """Have the service measure one variant of the small layer."""
    answer = server.post("/v1/convolutions", json={"layer": LAYER, "variant": FAST})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("is_measured", [False, True])
@pytest.mark.parametrize("limits", [{}, {"max_workspace_bytes": 0}, {"deterministic": True}], ids=str)
def test_library_server_and_command_line_answer_alike(server: Client, is_measured: bool, limits: dict) -> None:
    if is_measured:
        measure(server)
    given = {"dtype": "float32", "layout": "nchw", "device": GPU.id}
    answer = server.get("/v1/advice", params={"layer": LAYER, **given, **limits}).json()
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    options += ["--deterministic"] * ("deterministic" in limits)
    options += ["--max-workspace-bytes", "0"] * ("max_workspace_bytes" in limits)
    told = json.loads(CliRunner().invoke(cli, ["advise", LAYER, *options, "--json"]).stdout)
    advice = conv_advisor.advise(LAYER, **given, **limits)
    assert advice.to_dict() == told == answer
    assert advice.is_measured is (answer["source"] == "measured")
    assert is_measured is any(choice.source == "measured" for choice in advice.ranking)


def test_what_is_measured_later_counts(server: Client) -> None:
    assert not conv_advisor.advise(LAYER, device=GPU.id).is_measured
    measure(server)
    library._local.cache_clear()
    assert conv_advisor.advise(LAYER, device=GPU.id).is_measured


def test_the_answer_says_what_is_asked_most(server: Client) -> None:
    advice = conv_advisor.advise(SMALL, device=GPU.id)
    assert (advice.variant, advice.best.variant, advice.device_id) == (FAST, FAST, GPU.id)
    assert advice.time_ms == advice.ranking[0].time_ms > 0
    assert advice.confidence == advice.trust.confidence
    assert advice.is_guess is advice.trust.abstains
    assert {exclusion.variant for exclusion in advice.excluded}.isdisjoint(choice.variant for choice in advice.ranking)


def test_limits_hold(server: Client) -> None:
    ranked = conv_advisor.advise(LAYER, device=GPU.id, max_workspace_bytes=0).ranking
    assert all(choice.workspace_bytes in (0, None) for choice in ranked)
    assert all(
        choice.is_deterministic for choice in conv_advisor.advise(LAYER, device=GPU.id, deterministic=True).ranking
    )
    assert LEAN in {choice.variant for choice in ranked}


def test_the_shipped_tree_answers_without_a_store() -> None:
    advice = conv_advisor.advise("14-1-3-256-128", dtype="float16", layout="nhwc", device="nvidia-h200")
    assert advice.problem == conv_advisor.ConvProblem.parse("14-1-3-256-128", dtype="float16", layout="nhwc")
    assert advice == conv_advisor.advise(advice.problem)


def test_asking_writes_nothing(tmp_path: Path) -> None:
    conv_advisor.advise("14-1-3-256-128")
    assert not list(tmp_path.iterdir())


def test_an_answer_cannot_be_changed_and_can_be_copied_and_sent() -> None:
    advice = conv_advisor.advise("14-1-3-256-128")
    with pytest.raises((AttributeError, TypeError)):
        advice.device_id = "another"
    with pytest.raises((AttributeError, TypeError)):
        advice.time_ms = 0.0
    assert advice == copy.deepcopy(advice) == pickle.loads(pickle.dumps(advice))  # noqa: S301 - our own


def test_it_prints_as_one_reads_it() -> None:
    advice = conv_advisor.advise("14-1-3-256-128")
    first, second, third, *_, last = repr(advice).splitlines()
    assert first == f"14-1-3-256-128 float32 nchw on nvidia-h200: {advice.variant}"
    assert " % likely to be within 5 % of the fastest" in second
    assert third.startswith(advice.variant)
    assert last.endswith(f"{len(advice.excluded)} are out")


def test_it_prints_what_it_is_up_against(server: Client) -> None:
    advice = conv_advisor.advise("14-1-3-256-128", dtype="float16", layout="nhwc", device="nvidia-h200")
    best = advice.baselines.cudnn_best
    assert best.speedup is not None
    assert f"against cuDNN's best: {best.speedup:.2f}x as fast, {best.time_ms:.4g} ms {best.source}, " in repr(advice)
    assert "against cuDNN's heuristic: " in repr(advice)
    assert "against PyTorch's default: " in repr(advice)
    assert "against PyTorch's benchmark mode: " in repr(advice)
    unknown = conv_advisor.advise(LAYER, device=GPU.id)
    default = unknown.baselines.pytorch_default
    assert default.speedup is None
    assert f"against PyTorch's default: unknown, {default.basis}" in repr(unknown)
    for each in (advice, unknown):
        notebook = html.unescape(each._repr_html_())
        assert all(
            getattr(each.baselines, field).basis in notebook
            for field in ("cudnn_best", "cudnn_heuristic", "pytorch_default")
        )


def test_a_notebook_shows_all_of_it_and_nothing_of_it_is_markup(server: Client) -> None:
    advice = conv_advisor.advise(LAYER, device=GPU.id)
    shown = advice._repr_html_()
    assert all(choice.variant in shown for choice in (*advice.ranking, *advice.excluded))
    loud = library.LayerAdvice(
        advice.problem, "<b>", None, advice.ranking, advice.excluded, (), advice.trust, advice.baselines
    )
    assert "<b>" not in loud._repr_html_()


def test_a_guess_says_that_it_is_one() -> None:
    advice = conv_advisor.advise("3000-1-31-7-7")
    assert advice.is_guess
    assert advice.confidence is None
    assert repr(advice).splitlines()[1] == advice.trusted
    assert "the ranking is a guess: input height is 3000; trained on 1 to 1235" in advice.trusted


@pytest.mark.parametrize(
    ("layer", "given", "kind", "field"),
    [
        ("14-1-3-256", {}, InvalidLayerName, "layer"),
        ("14-1-3-256-128", {"dtype": "float64"}, InvalidProblem, "dtype"),
        ("14-1-3-256-128", {"layout": "chwn"}, InvalidProblem, "layout"),
        ("14-1-3-256-128", {"max_workspace_bytes": -1}, InvalidInput, "max_workspace_bytes"),
        ("14-1-3-256-128", {"max_workspace_bytes": 1.5}, InvalidInput, "max_workspace_bytes"),
        ("14-1-3-256-128", {"only": "nvidia"}, InvalidInput, "only"),
        ("14-1-3-256-128", {"deterministic": "no"}, InvalidInput, "deterministic"),
        ("14-1-3-256-128", {"max_workspace_bytes": True}, InvalidInput, "max_workspace_bytes"),
        (SMALL, {"dtype": "float16"}, InvalidProblem, "dtype"),
        (SMALL, {"layout": "nhwc"}, InvalidProblem, "layout"),
        (14, {}, InvalidInput, "layer"),
    ],
    ids=str,
)
def test_bad_input_names_the_field(layer: object, given: dict, kind: type[InvalidInput], field: str) -> None:
    with pytest.raises(kind) as caught:
        conv_advisor.advise(layer, **given)
    assert caught.value.field == field
    assert isinstance(caught.value, conv_advisor.ConvAdvisorError)


def test_an_unknown_device_says_which_are_known() -> None:
    with pytest.raises(UnknownDevice, match="nvidia-h200"):
        conv_advisor.advise("14-1-3-256-128", device="nvidia-h20")


def test_a_device_without_a_tree_is_advised_on_its_measurements(server: Client) -> None:
    other = replace(GPU, id="other-gpu")
    rows = [Measurement(SMALL, SLOW, other, Outcome.MEASURED, "", (0.5, 0.5), 0, 1e-7)]
    server.app.state.service.store.append(rows)
    advice = conv_advisor.advise(SMALL, device=other.id)
    assert (advice.variant, advice.is_measured, advice.model_id) == (SLOW, True, None)
    with pytest.raises(NoAdvice, match="other-gpu"):
        conv_advisor.advise("8-2-3-6-5", device=other.id)


def test_importing_is_light_and_loads_nothing_of_others() -> None:
    code = (
        "import sys; before = set(sys.modules); import conv_advisor\n"
        "loaded = {name.split('.')[0] for name in set(sys.modules) - before} - {'conv_advisor', 'typing'}\n"
        "assert loaded <= set(sys.stdlib_module_names), loaded\n"
        "assert not [name for name in sys.modules if name.startswith('conv_advisor.')]\n"
        "assert set(conv_advisor.__all__) <= set(dir(conv_advisor))\n"
        "assert conv_advisor.__version__ and conv_advisor.advise\n"
        "try: conv_advisor.advice\n"
        "except AttributeError as error: assert 'advice' in str(error)\n"
        "else: raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_advice_needs_neither_a_database_nor_a_web_server() -> None:
    unwanted = ("sqlalchemy", "fastapi", "starlette", "uvicorn", "numba", "scipy", "sklearn", "cupy")
    code = (
        "import conv_advisor, sys; conv_advisor.advise('14-1-3-256-128')\n"
        f"found = set({unwanted!r}) & set(sys.modules)\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/how-to.md"])
def test_the_programs_of_the_pages_run(page: str) -> None:
    programs = re.findall(r"```python\n(import conv_advisor\n.*?)```", (ROOT / page).read_text(), re.DOTALL)
    alone = [program for program in programs if "Client(" not in program]  # tests/app/test_client.py has a server
    assert alone
    for program in alone:
        done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout
