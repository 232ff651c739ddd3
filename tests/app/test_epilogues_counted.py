"""On a device that has costs of epilogues every form of advice counts them, alike."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.cli import cli
from conv_advisor.data.epilogue import PLAIN
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Ending
from tests.app.ending_costs import FACTOR, KERNEL_MS, give
from tests.app.serving import FAST, GPU, SLOW, Client, recording, serving
from tests.onnx_models import block

LAYER = "28-8-3-64-32"
ENDED = f"{LAYER}-bias-relu"
DEVICE = "nvidia-h200"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        give(monkeypatch, tmp_path_factory.mktemp("costs"), GPU.id)
        with serving(tmp_path_factory.mktemp("home")) as client:
            yield client


def advised(client: Client, query: str) -> dict[str, Any]:
    response = client.get(f"/v1/advice?device={GPU.id}&{query}")
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def expected_ms(variant: str, alone_ms: float) -> float:
    """What the costs make of a time: ours by cuBLAS is followed by a kernel; cuDNN's calls compute bias and ReLU."""
    is_appended = VARIANTS[variant].ending_of(ConvProblem.parse(ENDED).epilogue) is Ending.APPENDED
    return alone_ms + KERNEL_MS if is_appended else FACTOR * alone_ms


def test_every_time_of_a_ranking_has_the_epilogue(client: Client) -> None:
    plain, ended = advised(client, f"layer={LAYER}"), advised(client, f"layer={ENDED}")
    assert ended["epilogue_is_counted"] is True
    alone = {choice["variant"]: choice["time_ms"] for choice in plain["ranking"]}
    times = {choice["variant"]: choice["time_ms"] for choice in ended["ranking"]}
    assert {VARIANTS[name].ending for name in times} >= {Ending.FUSED, Ending.APPENDED}
    assert times == {name: pytest.approx(expected_ms(name, alone[name])) for name in times}
    assert list(times.values()) == sorted(times.values())
    assert {choice["source"] for choice in ended["ranking"]} == {"predicted"}
    assert ended["problem"]["layer"] == ENDED
    assert ended["trust"]["is_calibrated"] is False


@pytest.mark.parametrize("more", ["", "&baselines=true"])
def test_the_best_alone_and_lists_say_the_same(client: Client, more: str) -> None:
    whole = advised(client, f"layer={ENDED}")
    alone = advised(client, f"layer={ENDED}&ranking=false{more}")
    assert alone["epilogue_is_counted"] is True
    assert (alone["layer"], alone["variant"], alone["time_ms"]) == (ENDED, whole["variant"], whole["time_ms"])
    for asked in ({}, {"ranking": True}, {"baselines": True}):
        body = {"layers": [LAYER, ENDED, f"{LAYER}-silu"], "device": GPU.id} | asked
        answer = client.post("/v1/advice", json=body).json()["advice"]
        assert [each.get("epilogue_is_counted") for each in answer] == [None, True, True]
        assert (answer[1]["variant"], answer[1]["time_ms"]) == (whole["variant"], pytest.approx(whole["time_ms"]))


def test_a_measured_time_with_the_epilogue_counts_before_and_one_without_is_what_is_added_to(client: Client) -> None:
    problem = ConvProblem.parse("30-8-3-64-32-bias-relu")
    client.app.state.service.store.append(recording(problem.plain))
    alone = advised(client, "layer=30-8-3-64-32-bias-relu")
    times = {choice["variant"]: choice for choice in alone["ranking"]}
    assert (times[FAST]["time_ms"], times[FAST]["source"]) == (pytest.approx(0.010 * FACTOR), "predicted")
    client.app.state.service.store.append(recording(problem)[:1])
    measured = advised(client, "layer=30-8-3-64-32-bias-relu")
    times = {choice["variant"]: choice for choice in measured["ranking"]}
    assert (times[FAST]["time_ms"], times[FAST]["source"]) == (pytest.approx(0.010), "measured")
    assert times[SLOW]["source"] == "predicted"


@pytest.mark.parametrize("path", ["pareto", "neighbours", "explanations", "landscapes", "variants", "snippets"])
def test_what_goes_with_advice_goes_with_this_too(client: Client, path: str) -> None:
    response = client.get(f"/v1/{path}?layer={ENDED}&device={GPU.id}")
    assert response.status_code == 200, response.text
    if path == "pareto":
        times = {each["variant"]: each["time_ms"] for each in response.json()["points"]}
        assert times == {
            choice["variant"]: choice["time_ms"] for choice in advised(client, f"layer={ENDED}")["ranking"]
        }
        assert response.json()["other_layout"]


def test_the_page_shows_these_times_and_does_not_say_that_they_lack_it(client: Client) -> None:
    page = client.get(f"/?layer={ENDED}&device={GPU.id}").text
    assert "is not counted" not in page
    best = advised(client, f"layer={ENDED}")
    assert best["variant"] in page


@pytest.mark.parametrize(("device_id", "is_counted"), [(GPU.id, True), (DEVICE, False)])
def test_the_page_of_a_plan_says_where_epilogues_are_in_no_time(
    client: Client, device_id: str, is_counted: bool
) -> None:
    headers = {"content-type": "application/onnx", "hx-request": "true"}
    page = client.post(f"/plan?device={device_id}&batches=8", content=block(), headers=headers)
    assert page.status_code == 200, page.text
    assert ("The times of 3 convolutions lack what follows" in page.text) is not is_counted


@pytest.fixture
def h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The H200 has these costs, in this process."""
    give(monkeypatch, tmp_path, DEVICE)
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path / "home"))
    library._local.cache_clear()
    yield
    library._local.cache_clear()


def run(*arguments: str) -> str:
    """What the command prints."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(cli, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.usefixtures("h200")
def test_library_and_command_line_say_the_same_and_hold_it_against_eager_pytorch() -> None:
    asked = {"dtype": "float16", "layout": "nhwc", "device": DEVICE}
    plain, ended = (conv_advisor.advise("14-1-3-256-128", epilogue=each, **asked) for each in (None, "bias-relu"))
    assert ended.uncounted == PLAIN
    assert ended.to_dict()["epilogue_is_counted"] is True
    default = plain.baselines.pytorch_default
    assert ended.baselines.pytorch_default.time_ms == pytest.approx(default.time_ms + 2 * KERNEL_MS)
    assert ended.baselines.pytorch_default.basis.endswith("bias-relu in 2 kernels after the convolution, predicted")
    assert ended.baselines.cudnn_best.basis.endswith("what bias-relu adds is predicted")
    command = ("advise", "14-1-3-256-128-bias-relu", "--dtype", "float16", "--layout", "nhwc", "--device", DEVICE)
    said = run(*command)
    assert said.startswith(ended.variant)
    assert "without bias-relu" not in said
    assert json.loads(run(*command, "--json"))["time_ms"] == ended.time_ms
    listed = run(*command[:2], "28-1-3-128-128", *command[2:], "--csv")
    rows = list(csv.DictReader(io.StringIO(listed)))
    assert [row["epilogue_is_counted"] for row in rows] == ["True", ""]


@pytest.mark.usefixtures("h200")
def test_a_plan_counts_the_epilogue_of_each_layer_and_of_those_it_is_held_against(tmp_path: Path) -> None:
    file = tmp_path / "block.onnx"
    file.write_bytes(block())
    asked = ("plan", str(file), "--batch", "32", "--dtype", "float16", "--device", DEVICE)
    (answer,) = json.loads(run(*asked, "--json"))["plans"]
    assert all(layer["epilogue_is_counted"] for layer in answer["layers"])
    assert not any("lack what follows" in said for said in answer["remarks"])
    alone_ms, n_kernels = 0.0, 0
    for layer in answer["layers"]:
        said = layer["problem"]
        problem = ConvProblem.parse(said["layer"], dtype="float16", layout=said["layout"])
        known = conv_advisor.advise(problem, device=DEVICE)
        assert (layer["variant"], layer["time_ms"]) == (known.variant, known.time_ms)
        nchw = conv_advisor.advise(replace(problem, layout=Layout.NCHW, epilogue=PLAIN), device=DEVICE)
        alone_ms += nchw.baselines.pytorch_default.time_ms or 0.0
        n_kernels += len(str(problem.epilogue).split("-")) if problem.epilogue else 0
    assert n_kernels >= 3
    assert answer["against"]["pytorch_default"]["time_ms"] == pytest.approx(alone_ms + KERNEL_MS * n_kernels)
