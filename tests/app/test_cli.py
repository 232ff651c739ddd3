"""The command line as its user runs it: JSON on standard output, one clear line for an error."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

import conv_advisor
from conv_advisor.app.cli import cli, main, measure, output
from conv_advisor.app.settings import load_settings
from conv_advisor.app.wire.answers.advice import advice_answer
from conv_advisor.app.wire.answers.catalogue import variant_answer
from conv_advisor.data import parquet
from conv_advisor.data.problem import ConvProblem
from conv_advisor.data.store import Store
from conv_advisor.kernels import catalog
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.tree.file import TreeModel
from tests.data import arrow
from tests.fakes import SMALL_DEVICE, small_measurements, small_tree
from tests.processes import PATIENT, children, eventually, is_running

COMMAND = Path(sys.executable).with_name("conv-advisor")


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def small(tmp_path) -> tuple[str, ...]:
    """What a sweep is given to measure four layers that take next to no time."""
    layers = tmp_path / "small.txt"
    layers.write_text("".join(f"{size}-1-3-8-8\n" for size in (5, 6, 7, 8)))
    return "--device", "cpu", "--networks", "", "--problems", str(layers)


def start(home: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = os.environ | PATIENT | {"CONV_ADVISOR_HOME": str(home), "COLUMNS": "200"}
    return subprocess.Popen(
        [COMMAND, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    process = start(home, *arguments)
    output, errors = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


def answer(home: Path, *arguments: str):
    """The one JSON value that a command prints; in this process, where `run` starts one as users do."""
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        for name, value in (PATIENT | {"CONV_ADVISOR_HOME": str(home)}).items():
            patch.setenv(name, value)
        assert not cli([*arguments, "--json"], standalone_mode=False), "its exit status"
    return json.loads(printed.getvalue())


def test_help_names_every_command(home):
    done = run(home, "--help")
    for command in (
        "advise",
        "convolve",
        "sweep",
        "train",
        "evaluate",
        "compare",
        "variants",
        "serve",
        "data",
        "devices",
        "networks",
    ):
        assert f" {command} " in done.stdout


def test_variants_and_networks_are_listed(home):
    ids = {variant["id"] for variant in answer(home, "variants")["variants"]}
    assert {"cpu.direct", "cuda.cuconv", "cudnn.implicit_precomp_gemm"} <= ids
    assert {variant["id"].split(".")[0] for variant in answer(home, "variants", "--kind", "cpu")["variants"]} == {"cpu"}
    layers = {network["name"]: network["layers"] for network in answer(home, "networks")["networks"]}
    assert len(layers["seeds"]) == 86
    assert len(layers["resnet50"]) == len(answer(home, "networks", "resnet50")["layers"]) == 20
    assert re.search(r"^resnet50 +20\b", run(home, "networks").stdout, re.MULTILINE)
    assert "cpu.direct" in run(home, "variants").stdout
    assert not home.exists()


def test_version_is_said_alone(home):
    done = run(home, "--version")
    assert done.stdout == f"conv-advisor {conv_advisor.__version__}\n"
    assert done.returncode == 0


@pytest.fixture(scope="module")
def tree() -> TreeModel:
    return small_tree(0.01)


@pytest.fixture
def trained(home, tree) -> Path:
    registry = Registry(home)
    registry.activate(SMALL_DEVICE.id, registry.add(tree))
    return home


def test_advice_is_what_the_service_answers(trained, tree):
    arguments = ("advise", "8-2-3-16-16", "--device", SMALL_DEVICE.id)
    answered = answer(trained, *arguments)
    advice = Advisor(tree).advise(ConvProblem.parse("8-2-3-16-16"))
    assert answered == json.loads(json.dumps(advice_answer(advice)))
    assert (answered["variant"], answered["source"], answered["model"]) == ("cpu.direct", "predicted", tree.id)
    shown = run(trained, *arguments).stdout
    assert shown.startswith("cpu.direct, ")
    assert "do not apply: --all" in shown
    assert "not measured on this layer" in run(trained, *arguments, "--all").stdout
    assert not (trained / "conv-advisor.db").exists()


def test_advice_prefers_what_the_store_has_measured(trained):
    with Store(f"sqlite:///{trained / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01))
    answered = answer(trained, "advise", "8-6-3-16-16", "--device", SMALL_DEVICE.id)
    assert (answered["variant"], answered["source"]) == ("cpu.gemm", "measured")


def test_advice_comes_with_trade_offs_neighbours_and_a_program(trained, tmp_path):
    with Store(f"sqlite:///{trained / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01))
    asked = ("advise", "8-2-3-16-24", "--device", SMALL_DEVICE.id)
    answered = answer(trained, *asked, "--pareto")
    assert [point["variant"] for point in answered["points"]] == ["cpu.direct", "cpu.gemm"]
    assert answered["front"] == ["cpu.direct"]
    refused = run(trained, *asked, "--pareto", "--max-error", "1e-12")
    assert (refused.returncode, "an error of at most 1e-12" in refused.stderr) == (1, True)
    fast = answer(trained, *asked, "--pareto", "--max-slowdown", "1.5")
    assert [point["variant"] for point in fast["points"]] == ["cpu.direct"]
    near = answer(trained, *asked, "--neighbours", "2")["neighbours"]
    assert [each["layer"] for each in near] == ["8-2-3-16-16", "9-2-3-16-16"]
    assert near[0]["variant"] == "cpu.direct"
    program = tmp_path / "conv.py"
    program.write_text(run(trained, *asked, "--snippet").stdout + "print(y.shape)\n")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "(2, 16, 8, 8)"
    assert "likely to be within 5 %" in run(trained, *asked).stdout


def test_advice_keeps_to_its_limits(trained):
    answered = answer(trained, "advise", "8-2-3-16-16", "--device", SMALL_DEVICE.id, "--max-workspace-bytes", "20000")
    assert [choice["variant"] for choice in answered["ranking"]] == ["cpu.direct"]
    other = ("advise", "8-2-3-16-16", "--device", SMALL_DEVICE.id, "--dtype", "float16", "--layout", "nhwc")
    assert answer(trained, *other, "--deterministic")["problem"]["dtype"] == "float16"


def test_devices_with_a_model_are_listed(trained):
    devices = {device["id"]: device["has_model"] for device in answer(trained, "devices")["devices"]}
    assert devices[SMALL_DEVICE.id] is True


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_training_and_judging_need_measurements(home, command):
    done = run(home, command, "--device", "abacus")
    assert done.returncode == 2
    assert "conv-advisor: unknown device 'abacus'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_who_has_not_measured_this_processor_is_told_how(home, command):
    done = run(home, command, "--device", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "conv-advisor: device cpu: nothing was measured on it; conv-advisor sweep --device cpu does\n"
    )


@pytest.mark.parametrize("command", [("advise", "8-1-3-4-3"), ("plan", "alexnet")])
def test_who_asks_for_advice_on_an_unmeasured_processor_is_told_how_to_get_it(home, command):
    done = run(home, *command, "--device", "cpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "conv-advisor: device cpu: nothing was measured on it; conv-advisor sweep --device cpu does, and "
        "conv-advisor train --device cpu then learns from it\n"
    )


def test_an_export_names_the_devices_that_there_are_or_what_fills_an_empty_store(home, tmp_path):
    export = ("data", "export", str(tmp_path / "x.parquet"), "--device", "nope")
    done = run(home, *export)
    assert done.returncode == 2
    assert "device is 'nope'; allowed: one in the store, which is empty: sweep and data import add to it" in done.stderr
    with Store(f"sqlite:///{home / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01)[:20])
    done = run(home, *export)
    assert (done.returncode, done.stderr) == (2, f"conv-advisor: unknown device 'nope'; known: {SMALL_DEVICE.id}\n")


def test_a_calibration_without_a_gpu_says_that_there_is_none(home, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run(home, "calibrate")
    assert done.returncode == 2
    assert "device is 'auto'; allowed: a GPU, and no NVIDIA GPU is found on this host" in done.stderr


@pytest.mark.parametrize("asked", [("--top", "3"), ("--measure", "if unsure")])
def test_who_asks_for_the_first_of_no_ranking_is_told_that_all_are_run(home, asked):
    done = run(home, "convolve", "8-1-3-4-3", "--device", "cpu", *asked, "--json")
    n_run = len(json.loads(done.stdout)["results"])
    assert done.stderr == (
        f"there is no ranking to run the first of (nothing is known of cpu): all {n_run} variants are run\n"
    )


def test_training_on_too_little_ends_with_what_is_missing(home):
    with Store(f"sqlite:///{home / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01)[:20])
    for more in ((), ("--output", str(home / "tree"))):
        done = run(home, "train", "--device", SMALL_DEVICE.id, *more)
        assert done.returncode == 1, done.stderr
        assert f"conv-advisor: device {SMALL_DEVICE.id}: 10 problems were measured, and" in done.stderr
    assert not (home / "tree").exists()


def test_an_evaluation_of_nothing_is_no_empty_table(home):
    with Store(f"sqlite:///{home / 'conv-advisor.db'}") as store:
        store.append(small_measurements(0.01))
    for more in ((), ("--json",)):
        done = run(home, "evaluate", "--device", SMALL_DEVICE.id, *more)
        assert (done.returncode, done.stdout) == (1, ""), done.stdout
        assert "no layer of the networks that judge trees was measured there" in done.stderr
        assert "conv-advisor sweep --networks held-out on it does, which measures convnext_tiny, " in done.stderr


def test_a_variant_that_is_named_twice_is_measured_once(home):
    answered = answer(home, "convolve", "8-1-3-4-3", "--device", "cpu", "--variant", "cpu.direct,cpu.direct")
    assert [each["variant"] for each in answered["results"]] == ["cpu.direct"]


def test_convolve_measures_the_named_variants(home):
    answered = answer(home, "convolve", "8-1-3-4-3", "--device", "cpu", "--variant", "cpu.gemm,cpu.direct")
    assert (answered["layer"], answered["dtype"], answered["device"]) == ("8-1-3-4-3", "float32", "cpu")
    results = {each["variant"]: each for each in answered["results"]}
    assert set(results) == {"cpu.gemm", "cpu.direct"}
    assert all(min(each["samples_ms"]) > 0 and each["max_error"] < 1e-5 for each in results.values())


def test_convolve_runs_the_first_of_the_ranking(trained, monkeypatch):
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(trained))
    problem, settings = ConvProblem.parse("8-2-3-16-16"), load_settings()
    assert measure._advised(problem, SMALL_DEVICE, settings, 1, None) == ["cpu.direct"]
    assert measure._advised(problem, SMALL_DEVICE, settings, 2, None) == ["cpu.direct", "cpu.gemm"]
    unknown = replace(SMALL_DEVICE, id="abacus")
    every = {each.id for each in catalog.for_device_kind("cpu")}
    assert set(measure._advised(problem, unknown, settings, 2, None)) == every, "nothing is known of it"


def test_a_server_whose_port_is_taken_says_how_to_name_another(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = run(home, "serve", "--device", "cpu", "--port", str(port))
    assert done.returncode != 0
    assert f"port {port} of 127.0.0.1 is taken: --port, or CONV_ADVISOR_PORT, names another" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_whose_folder_cannot_be_written_says_which_and_no_more(tmp_path):
    (tmp_path / "taken").write_text("a file, where the folder should be")
    done = run(tmp_path / "taken", "serve", "--device", "cpu", "--port", "0")
    assert done.returncode != 0
    assert f"ERROR uvicorn.error cannot open the store in {tmp_path / 'taken' / 'conv-advisor.db'}: " in done.stderr
    assert "Traceback" not in done.stderr


def test_variants_are_told_alike_by_command_and_server(home):
    listed = answer(home, "variants", "--kind", "cuda")["variants"]
    assert listed == [variant_answer(each) for each in catalog.for_device_kind("cuda")]
    assert {each["device_kind"] for each in listed} == {"cuda"}


def test_convolve_says_its_answer_first(home):
    done = run(home, "convolve", "8-1-3-4-3", "--device", "cpu", "--variant", "cpu.gemm,cpu.direct")
    first, second, *_ = done.stdout.splitlines()
    headline = (
        r"(cpu\.\w+), [0-9.]+ µs measured, ([0-9.]+× ahead of|level with) cpu\.\w+, [0-9.]+ KiB workspace, error .*"
    )
    assert (said := re.fullmatch(headline, first)), first
    assert second.startswith("8-1-3-4-3 float32 nchw on ")
    assert done.stdout.splitlines()[4].startswith(said[1]), "the first of the table"


def test_convolve_all_runs_every_variant_of_the_device(home):
    answered = answer(home, "convolve", "6-1-1-4-3", "--device", "cpu", "--all")
    outcomes = {each["variant"]: each["outcome"] for each in answered["results"]}
    assert set(outcomes) == {variant["id"] for variant in answer(home, "variants", "--kind", "cpu")["variants"]}
    assert outcomes["cpu.winograd"] == "not_applicable"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("convolve", "14-1-3"), "layer is '14-1-3'; allowed: size-batch-filter-filters-depth, such as 14-1-3-256-128"),
        (
            ("advise", "resnet50"),
            "layer is 'resnet50'; allowed: a layer; `conv-advisor plan resnet50` plans this network",
        ),
        (("convolve", "14-1-0-4-4"), "r is 0; allowed: an integer from 1"),
        (("convolve", "8-1-3-4-3", "--variant", "cpu.magic"), "unknown variant 'cpu.magic'; known: cpu."),
        (
            ("convolve", "8-1-3-4-3", "--variant", "cpu.fft", "--all"),
            "variant is 'cpu.fft'; allowed: not together with",
        ),
        (("advise", "8-1-3-4-3", "--device", "abacus"), "unknown device 'abacus'"),
        (("advise", "8-1-3-4-3", "--pareto", "--snippet"), "options is '--pareto --snippet'; allowed: one of --pareto"),
        (
            ("convolve", "8-1-3-4-3", "--variant", "cpu.fft", "--top", "2"),
            "--top is 2; allowed: not together with --all or",
        ),
        (("convolve", "8-1-3-4-3", "--all", "--top", "2"), "--top is 2; allowed: not together with --all or --variant"),
        (
            ("convolve", "8-1-3-4-3", "--measure", "if unsure", "--top", "2"),
            "--measure is 'if unsure'; allowed: not together",
        ),
        (("train", "--report", "x"), "--report is 'x'; allowed: only with --ship"),
        (
            ("advise", "8-1-3-4-3", "8-1-3-4-5", "--json", "--csv"),
            "--csv is 'given'; allowed: not together with --json",
        ),
        (("plan", "resnet50", "--json", "--csv"), "--csv is 'given'; allowed: not together with --json"),
        (("train", "--output", "x", "--force"), "--output is 'x'; allowed: not together with --force or --ship"),
        (("advise", "8-1-3-4-3", "--max-slowdown", "2"), "--max-slowdown is 2.0; allowed: a finite number, with"),
        (("advise", "8-1-3-4-3", "--max-error", "1e-5"), "--max-error is 1e-05; allowed: a number above 0, with"),
        (("advise", "8-1-3-4-3", "--language", "c"), "--language is 'c'; allowed: only with --snippet"),
        (
            ("convolve", "8-1-3-4-3", "--device", "cpu", "--variant", "cuda.gemm"),
            "cuda.gemm does not apply: it runs on cuda",
        ),
        (
            ("convolve", "8-1-5-4-3", "--device", "cpu", "--variant", "cpu.gemm,cpu.winograd"),
            "cpu.winograd does not apply",
        ),
        (("compare", "missing.parquet", "nvidia-h200"), "BEFORE is 'missing.parquet'; allowed: a Parquet file or a"),
        (("compare", "no/folder", "nvidia-h200"), "BEFORE is 'no/folder'; allowed: a Parquet file or a folder"),
        (("compare", "abacus", "nvidia-h200"), "unknown device 'abacus'"),
        (("compare", "nvidia-h200", "nvidia-h200"), "AFTER is 'nvidia-h200'; allowed: another data set than BEFORE"),
        (("sweep", "--networks", "alexnet", "--without", "alexnet"), "--networks is 'alexnet'; allowed: networks with"),
        (
            ("sweep", "--networks", ""),
            "--networks is ''; allowed: networks with layers left after --without; or --problems",
        ),
        (("convolve", "8-1-3-4-3", "--device", "gpu"), "device is 'gpu'; allowed: auto, cpu, cuda:0"),
        (("plan", "resnet5o"), "unknown network 'resnet5o'; did you mean 'resnet50'? known: alexnet"),
        (
            ("plan", "models/resnet50.onnx"),
            "model is 'models/resnet50.onnx'; allowed: an ONNX file, torchvision:<name>",
        ),
        (("sweep", "--networks", "lenet"), "unknown network 'lenet'; did you mean 'alexnet'? known: alexnet"),
        (("sweep", "--without", "ernie"), "unknown network 'ernie'; known: alexnet"),
        (
            ("convolve", "8-1-3-4-3", "--variant", "cpu.gem"),
            "unknown variant 'cpu.gem'; did you mean 'cpu.gemm'? known: ",
        ),
        (("advise", "8-1-3-4-3", "--device", "nvidia-h20"), "unknown device 'nvidia-h20'; did you mean 'nvidia-h200'?"),
        (("variants", "8-1-3-4-3", "--device", "A10O"), "unknown device 'A10O'; did you mean 'a10"),
        (("advise",), "layer is ''; allowed: a layer, several, or --from"),
        (("advise", "8-1-3-4-3", "--from", "-"), "--from is '-'; allowed: not together with layers"),
        (("advise", "--from", "nowhere.txt"), "--from is 'nowhere.txt'; allowed: a readable text file"),
        (("advise", "8-1-3-4-3", "9-1-3-4-3", "--pareto"), "layer is '2 layers'; allowed: one layer, with --pareto"),
        (("advise", "8-1-3-4-3", "--stride", "2.5"), "--stride is '2.5'; allowed: a number, or two of height and"),
        (("advise", "8-1-3-4-3", "--stride", "0"), "stride_h is 0; allowed: an integer from 1"),
        (("advise", "8-1-3-4-3", "--groups", "5"), "groups is 5; allowed: "),
        (("advise", "8-1-3-4-3", "--input", "1x3x8x8"), "input is '1x3x8x8'; allowed: only together with a layer"),
        (("advise", "Conv2d(3, 4, 3)"), "--input is None; allowed: beside Conv2d(...) the shape of its input, such as"),
        (("advise", "Conv2d(3, 4, 3)", "--input", "1x5x8x8"), "input is '1x5x8x8'; allowed: 3 channels"),
        (
            ("advise", "Conv2d(3, 4, 3)", "--input", "1x3x8x8", "--stride", "2"),
            "stride_h is 2; allowed: not together with",
        ),
        (("sweep", "--dtypes", "float32,int8"), "dtypes is 'int8'; allowed: float32, tf32, float16, bfloat16"),
        (("sweep", "--layouts", "chwn"), "layouts is 'chwn'; allowed: nchw, nhwc"),
        (("sweep", "--batches", "1,-1"), "batches is '1,-1'; allowed: positive integers"),
        (
            ("sweep", "--epilogues", "none,relu-bias"),
            "epilogue is 'relu-bias'; allowed: in this order, by hyphens: bias",
        ),
        (("sweep", "--shard", "4/4"), "shard is '4/4'; allowed: INDEX/COUNT"),
        (("data", "import", "nowhere.parquet"), "paths is 'nowhere.parquet'; allowed: a file that exists"),
        (("data", "export", "x.csv", "--device", "cpu"), "path is 'x.csv'; allowed: a name that ends in .parquet"),
        (("data", "export", "x.parquet", "--device", "abacus"), "device is 'abacus'; allowed: one in the store"),
        (("serve", "--host", "0.0.0.0"), "host is '0.0.0.0'; allowed: a loopback address, or tokens"),  # noqa: S104 - refused
        (("serve", "--port", "70000"), "port is 70000; allowed: "),
    ],
)
def test_bad_input_is_one_line_and_status_2(home, monkeypatch, capsys, arguments, message):
    """In this process: that the command is this function, every other test shows."""
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(home))
    monkeypatch.setattr(sys, "argv", ["conv-advisor", *arguments])
    with pytest.raises(SystemExit, match="2"):
        main()
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith(f"conv-advisor: {message}")
    assert errors.count("\n") == 1


def test_a_store_that_cannot_be_read_is_one_line_and_status_1(home):
    home.mkdir()
    (home / "conv-advisor.db").write_text("no database")
    done = run(home, "devices")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("conv-advisor: cannot ")
    assert "Traceback" not in done.stderr


def test_a_sweep_is_resumed_and_its_rows_go_out_and_in(home, tmp_path, small):
    variants = ("--variants", "cpu.gemm,cpu.fft")
    first = answer(home, "sweep", *small, *variants, "--shard", "0/2")
    assert (first["n_problems"], first["n_attempts"], first["is_complete"]) == (2, 4, True)
    again = answer(home, "sweep", *small, *variants, "--output", str(tmp_path / "run.parquet"))
    assert (again["n_attempts"], again["n_skipped"], again["run_id"]) == (4, 4, first["run_id"])
    exported = answer(home, "data", "export", str(tmp_path / "all.parquet"), "--device", "cpu")
    assert [file["rows"] for file in exported["files"]] == [8, 0]
    for rows in (8, 0):
        (file,) = answer(tmp_path / "other", "data", "import", str(tmp_path / "run.parquet"))["files"]
        assert file["rows"] == rows
    (device,) = (each for each in answer(tmp_path / "other", "devices")["devices"] if each["id"] == "cpu")
    assert device["kind"] == "cpu"


def test_a_sweep_measures_layers_with_what_follows_them(home, tmp_path):
    listed = tmp_path / "layers.txt"
    listed.write_text("5-1-3-4-2\n6-1-1-4-2-silu\n")
    asked = ("--device", "cpu", "--networks", "", "--problems", str(listed), "--variants", "cpu.gemm")
    answered = answer(
        home, "sweep", *asked, "--epilogues", "none,bias-residual-relu", "--output", str(tmp_path / "run.parquet")
    )
    assert (answered["n_problems"], answered["n_attempts"], answered["outcomes"]) == (3, 3, {"measured": 3})
    rows = arrow.table_to_measurements(parquet.read(tmp_path / "run.parquet", parquet.SCHEMA))
    assert {row.problem.short for row in rows} == {"5-1-3-4-2", "5-1-3-4-2-bias-residual-relu", "6-1-1-4-2-silu"}


def test_a_sweep_takes_layers_from_a_file_alone(home, tmp_path):
    listed = tmp_path / "mine.txt"
    listed.write_text("7-1-1-8-8\n7-1-3-8-8 float16 nhwc  # another\n")
    mine = ("--device", "cpu", "--networks", "", "--problems", str(listed), "--variants", "cpu.gemm", "--no-picks")
    answered = answer(home, "sweep", *mine)
    assert (answered["n_problems"], answered["n_attempts"], answered["is_complete"]) == (2, 2, True)
    listed.write_text("7-1-1-8\n")
    done = run(home, "sweep", *mine)
    assert done.returncode == 2
    assert "mine.txt line 1" in done.stderr


def test_a_sweep_of_variants_of_another_kind_of_device_is_refused(home):
    done = run(home, "sweep", "--device", "cpu", "--networks", "alexnet", "--variants", "cuda.gemm")
    assert done.returncode == 2
    assert "cuda.gemm does not apply: it runs on cuda devices" in done.stderr.splitlines()[-1]
    assert done.stdout == ""


def test_convolve_says_that_nothing_ran_by_its_exit_status(home, monkeypatch, capsys):
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(home))
    monkeypatch.setenv("CONV_ADVISOR_WORKSPACE_LIMIT_BYTES", "0")
    monkeypatch.setattr(
        sys, "argv", ["conv-advisor", "convolve", "8-1-3-4-3", "--device", "cpu", "--variant", "cpu.gemm"]
    )
    with pytest.raises(SystemExit, match="1"):
        main()
    output, errors = capsys.readouterr()
    assert "workspace_exceeded" in output, "what happened is shown all the same"
    assert errors == "conv-advisor: no variant of 1 ran 8-1-3-4-3 on cpu\n"


def test_a_sweep_stops_at_its_time_limit(home, small):
    stopped = answer(home, "sweep", *small, "--time-limit-s", "0")
    assert (stopped["n_attempts"], stopped["is_complete"]) == (0, False)


def test_a_sweep_shows_how_far_it_is_on_a_terminal_and_nothing_elsewhere(home, small):
    sweep = ("sweep", *small, "--variants", "cpu.gemm")
    ours, theirs = os.openpty()
    environment = os.environ | PATIENT | {"CONV_ADVISOR_HOME": str(home), "COLUMNS": "200", "TERM": "xterm"}
    with subprocess.Popen([COMMAND, *sweep], env=environment, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: read_terminal(ours), b"")).decode()
        output = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    assert "100%" in shown
    assert "complete" in output
    assert "Next: conv-advisor advise LAYER --device cpu" in output
    assert "conv-advisor train --device cpu" in output
    again = run(home, *sweep)
    assert (again.returncode, again.stderr) == (0, "")


class Terminal(io.StringIO):
    """Standard error that says it is a terminal."""

    def isatty(self):
        return True


@pytest.fixture
def terminal(home, monkeypatch, capsys):
    """Runs a command in this process, on a terminal; what it shows there, and its output."""
    monkeypatch.setenv("CONV_ADVISOR_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm")

    def run(*arguments):
        shown = Terminal()
        monkeypatch.setattr(sys, "stderr", shown)
        monkeypatch.setattr(sys, "argv", ["conv-advisor", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, shown.getvalue()
        return shown.getvalue(), capsys.readouterr().out

    return run


def test_what_takes_longer_than_a_glance_shows_how_far_it_is(terminal, data_sets, monkeypatch):
    compared = ("compare", *data_sets, "--json")
    measured = ("convolve", "6-1-1-4-3", "--device", "cpu", "--variant", "cpu.direct,cpu.gemm", "--json")
    monkeypatch.setattr(output, "_GLANCE_S", -1.0)
    for command in (compared, measured):
        shown, said = terminal(*command)
        assert "100%" in shown, command
        json.loads(said)
    monkeypatch.setattr(output, "_GLANCE_S", 3600.0)
    shown, said = terminal(*compared)
    assert shown == ""
    json.loads(said)


def read_terminal(terminal: int) -> bytes:
    """What was written to a terminal; nothing once all that hold it have closed it."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""


@pytest.fixture
def heard_interrupts():
    """A shell starts what runs in its background with Ctrl-C ignored, and so do all that inherit from it."""
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, inherited)


@pytest.mark.usefixtures("heard_interrupts")
def test_an_interrupted_sweep_leaves_no_worker_and_keeps_its_rows(home):
    sweep = start(home, "sweep", "--device", "cpu", "--networks", "seeds")
    database = home / "conv-advisor.db"
    assert eventually(lambda: database.exists() and children(sweep.pid))
    workers = children(sweep.pid)
    time.sleep(0.5)
    sweep.send_signal(signal.SIGINT)
    try:
        output, errors = sweep.communicate(timeout=300)
    finally:
        sweep.kill()
    assert sweep.returncode not in (0, None)
    assert output == ""
    assert "Traceback" not in errors
    assert eventually(lambda: not any(map(is_running, workers)))


@pytest.fixture
def data_sets(tmp_path):
    """A folder and a file of measurements, of which the second's times are twice the first's."""
    for name, scale_ms in (("before", 0.01), ("after", 0.02)):
        rows = arrow.measurements_to_table(small_measurements(scale_ms))
        parquet.write(rows, tmp_path / name / "rows.parquet")
    return str(tmp_path / "before"), str(tmp_path / "after" / "rows.parquet")


def test_compare_shows_what_became_slower_between_two_data_sets(home, tmp_path, data_sets):
    before, after = data_sets
    answered = answer(home, "compare", before, after, "--most", "3")
    assert (answered["before"]["id"], answered["n_problems"]) == (SMALL_DEVICE.id, 30)
    assert answered["best"]["geometric_mean"] == pytest.approx(2)
    assert (answered["best"]["n_regressed"], len(answered["best"]["regressed"])) == (30, 3)
    assert {line["name"]: line["n_regressed"] for line in answered["variants"]} == {"cpu.direct": 30, "cpu.gemm": 30}
    table = run(home, "compare", before, after)
    assert table.returncode == 0
    assert "30 problems in both" in table.stdout
    (tmp_path / "empty").mkdir()
    refused = run(home, "compare", before, str(tmp_path / "empty"))
    assert refused.returncode == 2
    assert "a folder with Parquet files of measurements" in refused.stderr
