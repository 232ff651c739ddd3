"""What the command line answers a person: one line first, then what it is up against, whatever the terminal."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import conv_advisor
from conv_advisor.app.advice import library
from conv_advisor.app.advice import local as local_module
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.advice.local import Local
from conv_advisor.app.cli import complete, main, many, say
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.jobs.job import JobKind
from conv_advisor.app.jobs.table import Jobs
from conv_advisor.app.main import create_app
from conv_advisor.app.settings import Settings
from conv_advisor.data import networks
from conv_advisor.data.errors import NoAdvice, NotEnoughData
from conv_advisor.data.store import Store
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.baselines import Baseline, Baselines
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.ranking.trust import Trust
from tests.app.ending_costs import give
from tests.app.serving import Client
from tests.app.test_same_answers import refuse

DEVICE = "nvidia-h200"
LAYER = "14-1-3-256-128"
README = Path(__file__).parents[2] / "README.md"
PAINT = re.compile(r"\x1b\[[0-9;]*m")
KINDS = [(dtype, layout) for dtype in ("float32", "tf32", "float16", "bfloat16") for layout in ("nchw", "nhwc")]

Run = Callable[..., str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home without a store; the tree is loaded once."""
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(tmp_path / "home"))
    once = cache(local_module.Local)
    monkeypatch.setattr(local_module, "Local", once)
    monkeypatch.setattr(library, "Local", once)
    library._local.cache_clear()
    yield tmp_path / "home"
    library._local.cache_clear()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str, status: int = 0) -> str:
        monkeypatch.setattr(sys, "argv", ["conv-advisor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        output, errors = capsys.readouterr()
        assert (ended.value.code or 0) == status, errors
        assert "Traceback" not in errors
        return output or errors

    return run


def test_the_answer_comes_first_in_one_line(run: Run) -> None:
    advice = conv_advisor.advise(LAYER, device=DEVICE)
    first, second, *_ = run("advise", LAYER, "--device", DEVICE).splitlines()
    assert first == say.headline(advice)
    assert f"`{first}`" in README.read_text(), "which shows it"
    assert first.startswith(f"{advice.variant}, ")
    assert re.search(r"[0-9.]+ µs measured, [0-9.]+× ahead of cuDNN's best, [0-9.]+× ahead of PyTorch's default", first)
    assert first.endswith(" workspace")
    assert second.startswith(f"{LAYER} float32 nchw on {DEVICE}, tree ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("advise", LAYER, "--device", ""), "'--device': ''; leave it out for the default"),
        (("plan", "alexnet", "--device", ""), "'--device': ''; leave it out for the default"),
        (("plan", "alexnet", "--dims", "height=3"), "dims is 'height=3'; allowed: only with an ONNX file"),
        (
            ("sweep", "--output", "/nowhere/rows.parquet"),
            "--output is '/nowhere/rows.parquet'; allowed: a file in a folder",
        ),
        (("jobs", "list", "--limit", "0"), "'--limit': '0': Input should be greater"),
        (("variants", LAYER, "--device", ""), "'--device': ''; leave it out for the default"),
        (("variants", "--device", DEVICE), f"--device is '{DEVICE}'; allowed: only with a layer"),
        (("advise", LAYER, "--from", "-"), "--from is '-'; allowed: not together with layers on the command line"),
        (("advise", LAYER, "--pareto", "--max-error", "-1"), "'--max-error': '-1': Input should be greater"),
        (("advise", f"{LAYER}-relu", "--activation", "silu"), "activation is 'silu'; allowed: not together with layer"),
        (
            ("advise", f"{LAYER}-stride2", "--stride", "1"),
            "stride_h is 1; allowed: not together with layer, which sets 2",
        ),
    ],
)
def test_options_that_contradict_or_say_nothing_are_refused(run: Run, words: tuple[str, ...], said: str) -> None:
    assert said in " ".join(run(*words, status=2).split())


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize(("dtype", "layout"), KINDS[:1] + KINDS[-1:])
def test_nothing_breaks_on_a_narrow_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int, dtype: str, layout: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    kind = ("--dtype", dtype, "--layout", layout, "--device", DEVICE)
    depthwise = ("56-8-3-32-32", "--groups", "32", "--stride", "2")
    for words in (
        ("advise", LAYER, *kind, "--all"),
        ("advise", *depthwise, *kind),
        ("advise", LAYER, "56-32-1-64-256", *kind),
        ("advise", LAYER, *kind, "--pareto"),
        ("advise", LAYER, *kind, "--neighbours", "5"),
        ("variants", LAYER, *kind),
        ("plan", "alexnet", "--dtype", dtype, "--device", DEVICE),
        ("plan", "alexnet", "--dtype", dtype, "--device", DEVICE, "--batches", "1,8"),
    ):
        output = run(*words)
        assert max(map(len, output.splitlines())) <= columns
        assert not PAINT.search(output)


def test_batches_of_a_plan_have_a_line_each_at_80_columns(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("plan", "alexnet", "--device", DEVICE, "--batches", "1,8").splitlines()
    assert [line.split()[0] for line in lines[-2:]] == ["1", "8"]
    assert all(line.endswith(("MiB", " no")) for line in lines[-2:]), "its workspace, if it needs any"


@pytest.mark.parametrize("words", [(), ("data",), ("database",), ("jobs",)])
def test_no_help_of_a_command_is_cut_short(run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = run(*words, "--help").split("Commands:")[1]
    assert "..." not in listed
    assert len(listed.strip().splitlines()) == len(re.findall(r"^  \w+  +\S.*\.$", listed, re.MULTILINE))


def test_a_network_has_its_layers_listed(run: Run) -> None:
    whole = networks.whole("resnet50")
    said = run("networks", "resnet50")
    assert said.startswith("resnet50: 20 distinct layers, 53 in one pass\n")
    for layer in whole:
        assert re.search(rf"^{layer.problem.brief} +{layer.count} ", said, re.MULTILINE)
    found = json.loads(run("networks", "resnet50", "--json"))
    assert [(each["layer"], each["count"]) for each in found["layers"]] == [(x.problem.short, x.count) for x in whole]
    assert "conv-advisor plan" not in run("networks", "filter-sweep"), "which is no network"
    run("networks", "resnet5o", status=2)


def test_no_jobs_are_no_empty_table(run: Run) -> None:
    assert run("jobs", "list").startswith("No job was ever submitted")


def test_a_job_that_failed_is_listed_with_the_reason(run: Run, home: Path) -> None:
    home.mkdir()
    with Store(load_settings().store_url) as store:
        jobs = Jobs(store)
        jobs.create(JobKind.RETRAIN, {"device": "cpu"})
        job = jobs.claim("me", 30.0)
        assert job is not None
        jobs.note_progress(job, 0.5, "halfway")
        jobs.fail(job, NotEnoughData("3 measurements"))
    (line,) = [line for line in run("jobs", "list").splitlines() if job.id in line]
    assert "3 measurements" in line
    assert "halfway" not in line


@pytest.mark.parametrize("command", [("variants",), ("networks",), ("networks", "vgg19"), ("devices",)])
def test_lists_fit_too(run: Run, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, run(*command).splitlines())) <= 60


def test_a_pipe_gets_a_line_a_variant_and_no_colours(run: Run) -> None:
    advice = conv_advisor.advise(LAYER, device=DEVICE)
    output = run("advise", LAYER, "--device", DEVICE, "--all")
    lines = output.splitlines()
    assert not PAINT.search(output)
    ranked = lines[lines.index(next(line for line in lines if line.startswith("variant "))) + 1 :]
    assert [line.split()[0] for line in ranked[: len(advice.ranking)]] == [choice.variant for choice in advice.ranking]


def test_colours_say_ahead_and_predicted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    output = run("advise", LAYER, "--device", DEVICE)
    assert re.search(r"\x1b\[32m[0-9.]+×\x1b\[0m", output)
    assert "\x1b[33mpredicted\x1b[0m" in output


def test_ten_variants_are_shown_unless_all_are_asked_for(run: Run) -> None:
    advice = conv_advisor.advise(LAYER, device=DEVICE)
    assert len(advice.ranking) > say.SHOWN
    last = advice.ranking[-1].variant
    shown = run("advise", LAYER, "--device", DEVICE)
    assert last not in shown
    assert (
        f"{len(advice.ranking) - say.SHOWN} more variants, and why {len(advice.excluded)} do not apply: --all" in shown
    )
    whole = run("advise", LAYER, "--device", DEVICE, "--all")
    assert last in whole
    for each in advice.excluded:
        assert re.search(rf"^{re.escape(each.variant)} +{re.escape(each.reason)}$", whole, re.MULTILINE)


def test_a_pasted_layer_is_the_layer_it_says(run: Run) -> None:
    pasted = "Conv2d(64, 128, kernel_size=(3, 3), stride=(2, 2), padding=(1, 1), bias=False)"
    named = run("advise", "56-1-3-128-64", "--stride", "2", "--device", DEVICE, "--json")
    assert run("advise", pasted, "--input", "1x64x56x56", "--device", DEVICE, "--json") == named
    problem = json.loads(named)["problem"]
    assert (problem["stride_h"], problem["stride_w"], problem["pad_h"], problem["k"]) == (2, 2, 1, 128)


def test_many_layers_are_answered_as_a_server_answers_them(run: Run, tmp_path: Path) -> None:
    layers = [LAYER, "15-1-3-250-120", "56-32-1-64-256"]
    (tmp_path / "layers.txt").write_text("\n".join(layers))
    kind = ("--dtype", "float16", "--layout", "nhwc", "--device", DEVICE)
    printed = run("advise", "--from", str(tmp_path / "layers.txt"), *kind, "--json")
    assert run("advise", *layers, *kind, "--json") == printed
    with_app = Client(create_app(Settings(home=tmp_path / "home"), open_engine=refuse))
    try:
        body = {"layers": layers, "dtype": "float16", "layout": "nhwc", "device": DEVICE, "baselines": True}
        assert json.loads(printed) == with_app.post("/v1/advice", json=body).json()
    finally:
        with_app.close()


def test_many_layers_make_a_table_or_values_for_a_spreadsheet(run: Run) -> None:
    layers = [LAYER, "15-1-3-250-120"]
    found = [conv_advisor.advise(layer, device=DEVICE) for layer in layers]
    table = run("advise", *layers, "--device", DEVICE)
    for layer, advice in zip(layers, found, strict=True):
        assert re.search(rf"^{layer} +{re.escape(advice.variant)} ", table, re.MULTILINE)
    assert "2 layers, float32 nchw, " in table
    rows = list(csv.DictReader(io.StringIO(run("advise", *layers, "--device", DEVICE, "--csv"))))
    assert [row["layer"] for row in rows] == layers
    for row, advice in zip(rows, found, strict=True):
        assert (row["variant"], float(row["time_ms"]), row["source"]) == (
            advice.variant,
            advice.time_ms,
            advice.best.source,
        )
        assert float(row["cudnn_best_ms"]) == advice.baselines.cudnn_best.time_ms
        assert float(row["pytorch_default_speedup"]) == advice.baselines.pytorch_default.speedup
        assert row["error"] == ""


def test_a_layer_of_many_that_has_no_advice_says_so_in_its_place(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    advised = many._advised

    def without_one(local: Local, problem: conv_advisor.ConvProblem, limits: Limits) -> Advice | NoAdvice:
        is_out = problem.short == "15-1-3-250-120"
        return NoAdvice("no variant is known to run it") if is_out else advised(local, problem, limits)

    monkeypatch.setattr(many, "_advised", without_one)
    layers = [LAYER, "15-1-3-250-120", "56-32-1-64-256"]
    assert "no variant is known to run it" in run("advise", *layers, "--device", DEVICE, status=1)
    answer = json.loads(run("advise", *layers, "--device", DEVICE, "--json", status=1))
    assert ["error" in each for each in answer["advice"]] == [False, True, False]
    rows = list(csv.DictReader(io.StringIO(run("advise", *layers, "--device", DEVICE, "--csv", status=1))))
    assert [bool(row["error"]) for row in rows] == [False, True, False]


def test_cudnn_alone_can_be_asked_for(run: Run) -> None:
    answer = json.loads(run("advise", LAYER, "--device", DEVICE, "--only", "cudnn", "--json"))
    assert {choice["variant"].partition(".")[0] for choice in answer["ranking"]} == {"cudnn"}
    first = run("advise", LAYER, "--device", DEVICE, "--only", "cudnn").splitlines()[0]
    assert "cuDNN's own best" in first


def test_which_variants_run_a_layer_is_what_the_server_says(run: Run, tmp_path: Path) -> None:
    printed = json.loads(run("variants", LAYER, "--device", DEVICE, "--json"))
    client = Client(create_app(Settings(home=tmp_path / "home"), open_engine=refuse))
    try:
        assert printed == client.get(f"/v1/variants?layer={LAYER}&device={DEVICE}").json()
    finally:
        client.close()
    shown = run("variants", LAYER, "--device", DEVICE)
    reasons = {variant["id"]: variant["reason"] for variant in printed["variants"]}
    n_running = sum(reason is None for reason in reasons.values())
    assert f"{n_running} of {len(reasons)} variants run it" in shown
    for name, reason in reasons.items():
        line = re.search(rf"^{re.escape(name)} +(.+)$", shown, re.MULTILINE)
        assert line is not None
        assert line[1].startswith("runs" if reason is None else "does not")
        assert reason is None or reason in line[1]


def test_names_are_completed() -> None:
    assert DEVICE in complete.devices("nvidia")
    assert complete.devices("none such") == []
    assert complete.networks("alexnet,goo") == ["alexnet,googlenet"]
    assert complete.models("resnet") == ["resnet50", "resnetv2_50"]
    assert complete.models("held") == complete.models("block.on") == []
    assert complete.variants("cudnn.fft") == [
        "cudnn.fft",
        "cudnn.fft_tc",
        "cudnn.fft_tiling",
        "cudnn.fft_tiling_tc",
    ]


def advice_of(best: Choice, cudnn: Baseline, pytorch: Baseline) -> Advice:
    problem = conv_advisor.ConvProblem.parse(LAYER)
    trust = Trust(0.9, 0.05, True, False)
    return Advice(problem, "made-up", None, (best,), (), (), trust, Baselines(cudnn, cudnn, pytorch, pytorch))


def beside(variant: str | None, speedup: float | None, source: Source = Source.MEASURED) -> Baseline:
    is_known = speedup is not None
    return Baseline(variant, 1.0 if is_known else None, source if is_known else None, speedup, "so it is")


MEASURED = Choice("cuda.gemm", 0.0319, Source.MEASURED, 1.0, 0.01, True, 0, True)
PREDICTED = Choice("cuda.gemm", 0.0319, Source.PREDICTED, 1.0, 0.1, True, 5 * 2**20, True)


@pytest.mark.parametrize(
    ("best", "cudnn", "pytorch", "said"),
    [
        (
            MEASURED,
            beside("cudnn.gemm", 1.24),
            beside(None, 1.4),
            "31.9 µs measured, 1.24× ahead of cuDNN's best, 1.40× ahead of PyTorch's default, no workspace",
        ),
        (
            MEASURED,
            beside("cudnn.gemm", 1.24, Source.PREDICTED),
            beside(None, 0.8, Source.PREDICTED),
            "31.9 µs measured, 1.24× ahead of cuDNN's best (predicted), 1.25× behind PyTorch's default (predicted), "
            "no workspace",
        ),
        (
            PREDICTED,
            beside("cudnn.gemm", 1.004, Source.PREDICTED),
            beside(None, None),
            "31.9 µs predicted, level with cuDNN's best, 5 MiB workspace",
        ),
        (MEASURED, beside("cuda.gemm", 1.0), beside(None, None), "31.9 µs measured, cuDNN's own best, no workspace"),
        (MEASURED, beside(None, None), beside(None, None), "31.9 µs measured, no workspace"),
    ],
)
def test_the_line_says_what_is_known_and_no_more(best: Choice, cudnn: Baseline, pytorch: Baseline, said: str) -> None:
    assert say.headline(advice_of(best, cudnn, pytorch)) == f"cuda.gemm, {said}"


def test_what_is_unknown_says_why_below(capsys: pytest.CaptureFixture[str]) -> None:
    say.show_advice(advice_of(MEASURED, beside("cudnn.gemm", 2.0), beside(None, None)), is_all=False)
    assert re.search(r"PyTorch's default +unknown: so it is", capsys.readouterr().out)


def test_an_epilogue_that_is_not_counted_is_said_in_every_form(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, tmp_path)
    said = run("advise", "14-1-3-256-128", "--bias", "--activation", "relu", "--device", "nvidia-h200")
    assert said.splitlines()[0].endswith("workspace, without bias-relu")
    assert "The epilogue, bias-relu, is not counted" in said
    layers = ("14-1-3-256-128-bias-relu", "28-1-3-128-128")
    assert "in all, epilogues not counted." in run("advise", *layers, "--device", "nvidia-h200")
    listed = run("advise", *layers, "--csv", "--device", "nvidia-h200")
    rows = list(csv.DictReader(io.StringIO(listed)))
    assert [row["epilogue_is_counted"] for row in rows] == ["False", ""]
