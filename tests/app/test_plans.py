"""From ONNX models to plans: what is read, what is refused, and what is said of the rest."""

from __future__ import annotations

import csv
import io
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec import structs
from onnx import TensorProto, helper
from typer.testing import CliRunner

from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.advice.local import Local
from conv_advisor.app.cli import cli
from conv_advisor.app.plans import known, onnx_reader, reading
from conv_advisor.app.plans.known import known_network
from conv_advisor.app.plans.onnx_network import network_of
from conv_advisor.app.plans.outline import MAX_NODES, Request
from conv_advisor.app.plans.planning import plan_network
from conv_advisor.app.plans.reading import read_outline
from conv_advisor.app.settings import load_settings
from conv_advisor.data.epilogue import EVERY_EPILOGUE
from conv_advisor.data.errors import ConvAdvisorError, InvalidInput, NoAdvice, WorkerError
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.planning.network import Network
from conv_advisor.models.planning.plan import Rival, make_plan
from conv_advisor.models.ranking.candidates import Source
from tests.app.ending_costs import give
from tests.onnx_models import Build, block, stored


def network(body: bytes, batch: int = 1, dtype: DType | None = DType.FLOAT32, **dims: int) -> Network:
    """What is read of a model; here in this process, which takes a tenth of the time."""
    try:
        outline = onnx_reader.outline_of(body, Request(batch, dims))
    except onnx_reader.Refused as refused:
        raise InvalidInput(refused.fault.field, refused.fault.value, refused.fault.allowed) from None
    return network_of(outline, "tested", dtype)


def epilogues(body: bytes) -> list[str]:
    """What ends in each convolution."""
    return [str(convolution.problem.epilogue) for convolution in network(body).convolutions]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Local:
    return Local(load_settings(home=tmp_path_factory.mktemp("home")))


def limits(local: Local, **changes: object) -> Limits:
    given = {"max_workspace_bytes": local.settings.workspace_limit_bytes, "is_deterministic": False} | changes
    return Limits("nvidia-h200", **given)


def test_a_model_is_read_for_a_batch_and_a_precision() -> None:
    found = network(block(), batch=32, dtype=DType.FLOAT16)
    problems = [convolution.problem for convolution in found.convolutions]
    assert [problem.short for problem in problems] == [
        "64x64-32-7x7-64-3-stride2x2-pad3x3-dilation1x1-groups1-bias-relu",
        "16-32-3-64-64-bias-relu",
        "16-32-3-64-64-residual-relu",
    ]
    assert {problem.dtype for problem in problems} == {DType.FLOAT16}
    assert [each.kind for each in found.operators] == [
        *("Conv", "MaxPool", "Conv", "Conv", "GlobalAveragePool", "Flatten"),
    ]


def test_a_plan_says_what_each_layer_takes_and_what_that_gains(local: Local) -> None:
    plan = plan_network(local, network(block(), batch=32, dtype=DType.FLOAT16), limits(local))
    assert plan.n_convolutions == 3
    assert sum(layer.share for layer in plan.layers) + plan.conversions_ms / plan.time_ms == pytest.approx(1)
    assert plan.time_ms == pytest.approx(sum(layer.total_ms for layer in plan.layers) + plan.conversions_ms)
    for total in plan.rivals.values():
        assert total.n_measured + total.n_predicted == 3
        assert total.speedup == pytest.approx(total.time_ms / plan.time_ms)


STORED = {"FLOAT16": DType.FLOAT16, "BFLOAT16": DType.BFLOAT16, "FLOAT": DType.FLOAT32}


@pytest.mark.parametrize("precision", STORED)
def test_a_model_is_planned_in_its_own_precision_unless_another_is_asked_for(precision: str) -> None:
    body = stored(precision)
    (own,) = network(body, dtype=None).convolutions
    (asked,) = network(body, dtype=DType.TF32).convolutions
    assert (own.problem.dtype, asked.problem.dtype) == (STORED[precision], DType.TF32)


def test_a_model_in_a_precision_that_nothing_is_known_of_is_refused_unless_another_is_asked_for() -> None:
    with pytest.raises(InvalidInput, match=r"DOUBLE.*allowed: float32, tf32, float16, bfloat16") as caught:
        network(stored("DOUBLE"), dtype=None)
    assert caught.value.field == "dtype"
    assert network(stored("DOUBLE"), dtype=DType.FLOAT32).convolutions


def test_what_most_of_a_model_is_in_counts_and_the_rest_is_said() -> None:
    mixed = network(stored("FLOAT", "FLOAT16", "FLOAT16", "DOUBLE"), dtype=None)
    assert {each.problem.dtype for each in mixed.convolutions} == {DType.FLOAT16}
    assert mixed.remarks == (
        "1 convolution in FLOAT planned in float16, as most of the model is",
        "1 convolution in DOUBLE planned in float16, as most of the model is",
    )


def test_the_precision_of_a_weight_that_the_model_computes_is_followed() -> None:
    build = Build(1, 3, 8, 8)
    half = build.node("Cast", "x", to=TensorProto.FLOAT16)
    weight = build.node("Cast", build.weight(8, 3, 3, 3), to=TensorProto.FLOAT16)
    (conv,) = network(build.bytes(build.node("Conv", half, weight)), dtype=None).convolutions
    assert conv.problem.dtype is DType.FLOAT16


def test_a_printed_plan_is_a_table_and_no_more_than_that(local: Local) -> None:
    plan = plan_network(local, network(block(), batch=32, dtype=DType.FLOAT16), limits(local))
    first, head, *lines = str(plan).splitlines()
    assert first == f"tested on nvidia-h200: 3 convolutions in {plan.time_ms:.4g} ms"
    assert head.split() == ["layer", "dtype", "layout", "count", "variant", "each", "time", "is", "share", "gain"]
    assert {line.split()[0] for line in lines[:3]} == {layer.problem.brief for layer in plan.layers}
    speedup = plan.rivals[Rival.PYTORCH_DEFAULT].speedup
    assert f"against PyTorch's default: {speedup:.2f}x" in lines
    many = plan_network(local, known_network("inception_v3", batch=1, dtype=DType.FLOAT16), limits(local))
    assert f"... and {len(many.layers) - 20} more layers" in repr(many)


def test_no_layout_for_all_is_faster_than_the_plan(local: Local) -> None:
    plan = plan_network(local, known_network("resnet50", batch=8, dtype=DType.TF32), limits(local))
    for layout in Layout:
        problems = [replace(convolution.problem, layout=layout) for convolution in plan.network.convolutions]
        one_ms = sum(local.advise(problem, "nvidia-h200").best.time_ms for problem in problems)
        assert plan.time_ms <= one_ms * (1 + 1e-9)


def test_a_plan_says_what_channels_last_alone_would_take(local: Local) -> None:
    plan = plan_network(local, known_network("resnet50", batch=8, dtype=DType.FLOAT16), limits(local))
    problems = [replace(convolution.problem, layout=Layout.NHWC) for convolution in plan.network.convolutions]
    defaults = [local.advise(problem, "nvidia-h200").baselines.pytorch_default.time_ms for problem in problems]
    assert plan.rivals[Rival.PYTORCH_CHANNELS_LAST].time_ms == pytest.approx(sum(defaults))


def test_a_plan_says_what_benchmark_mode_alone_would_take(local: Local) -> None:
    plan = plan_network(local, known_network("resnet50", batch=8, dtype=DType.FLOAT16), limits(local))
    problems = [replace(convolution.problem, layout=Layout.NCHW) for convolution in plan.network.convolutions]
    tuned = [local.advise(problem, "nvidia-h200").baselines.pytorch_benchmark for problem in problems]
    total = plan.rivals[Rival.PYTORCH_BENCHMARK]
    assert total.time_ms == pytest.approx(sum(each.time_ms for each in tuned))
    assert total.n_measured == sum(each.source is Source.MEASURED for each in tuned)
    assert total.n_measured + total.n_predicted == len(problems)


def test_a_workspace_limit_holds_for_every_layer(local: Local) -> None:
    found = network(block(), batch=32)
    assert plan_network(local, found, limits(local, max_workspace_bytes=0)).workspace_bytes == 0


ACTIVATIONS = {
    "relu": lambda build, x: build.node("Relu", x),
    "sigmoid": lambda build, x: build.node("Sigmoid", x),
    "relu6": lambda build, x: build.node("Clip", x, build.weight(value=0.0), build.weight(value=6.0)),
    "leaky_relu": lambda build, x: build.node("LeakyRelu", x, alpha=0.01),
    "silu": lambda build, x: build.node("Mul", x, build.node("Sigmoid", x)),
    "hardswish": lambda build, x: build.node("Mul", build.node("HardSigmoid", x, alpha=1 / 6, beta=0.5), x),
    "gelu_tanh": lambda build, x: build.node("Gelu", x, approximate="tanh"),
    "gelu": lambda build, x: build.node(
        "Mul",
        build.node(
            "Mul",
            x,
            build.node(
                "Add",
                build.node("Erf", build.node("Div", x, build.weight(value=2**0.5))),
                build.weight(value=1.0),
            ),
        ),
        build.weight(value=0.5),
    ),
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_ends_in_its_convolution(activation: str) -> None:
    build = Build()
    end = ACTIVATIONS[activation](build, build.conv("x", 8, 3, bias=True))
    assert epilogues(build.bytes(end)) == [f"bias-{activation}"]


OTHERS = {
    "another bound": lambda build, x: build.node("Clip", x, build.weight(value=0.0), build.weight(value=5.0)),
    "another slope": lambda build, x: build.node("LeakyRelu", x, alpha=0.2),
    "another gate": lambda build, x: build.node("Mul", build.node("HardSigmoid", x), x),
    "no activation of ours": lambda build, x: build.node("Tanh", x),
    "a tensor that another reads too": lambda build, x: build.node("Concat", build.node("Relu", x), x, axis=1),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_epilogue_stays_out(other: str) -> None:
    build = Build()
    end = OTHERS[other](build, build.conv("x", 8, 3))
    assert epilogues(build.bytes(end)) == [""]


def test_a_result_of_the_model_is_made() -> None:
    build = Build()
    made = build.conv("x", 8, 3)
    assert epilogues(build.bytes(made, build.node("Relu", made))) == [""]


def test_of_two_branches_that_are_added_the_later_one_ends_in_the_sum() -> None:
    build = Build()
    first, second = build.conv("x", 8, 3), build.conv("x", 8, 3, 1)
    assert epilogues(build.bytes(build.node("Relu", build.node("Add", first, second)))) == ["", "residual-relu"]


def test_a_bias_may_be_a_node_of_its_own() -> None:
    build = Build()
    end = build.node("Add", build.conv("x", 8, 3), build.weight(8, 1, 1))
    assert epilogues(build.bytes(end)) == ["bias"]


@pytest.mark.parametrize(
    ("attributes", "pads"),
    [
        ({"pads": [1, 2, 1, 2]}, (1, 2, 1, 2)),
        ({"pads": [0, 0, 1, 1]}, (0, 0, 1, 1)),
        ({"auto_pad": "SAME_UPPER", "strides": [2, 2]}, (0, 0, 1, 1)),
        ({"auto_pad": "SAME_LOWER", "strides": [2, 2]}, (1, 1, 0, 0)),
        ({"auto_pad": "VALID"}, (0, 0, 0, 0)),
    ],
)
def test_paddings_are_read_as_onnx_means_them(attributes: dict, pads: tuple[int, ...]) -> None:
    build = Build()
    (conv,) = network(build.bytes(build.conv("x", 8, 3, **attributes))).convolutions
    problem = conv.problem
    assert (problem.pad_h, problem.pad_w, problem.pad_h_end, problem.pad_w_end) == pads


def left_out(build: Build, end: str, **dims: int) -> str:
    """Why the only convolution of a model is left out."""
    (reason,) = (each.left_out for each in network(build.bytes(end), **dims).operators if each.left_out)
    return reason


def test_what_is_no_convolution_in_two_dimensions_is_listed() -> None:
    build = Build()
    assert "transposed" in left_out(build, build.node("ConvTranspose", "x", build.weight(3, 8, 2, 2)))
    build = Build(1, 3, 4, 8, 8)
    assert "in 3 dimensions" in left_out(build, build.node("Conv", "x", build.weight(8, 3, 3, 3, 3)))
    build = Build(1, 3, 9)
    assert "in 1 dimension:" in left_out(build, build.node("Conv", "x", build.weight(8, 3, 3)))


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"strides": [0, 1]}, "stride_h"),
        ({"pads": [-1, -1, -1, -1]}, "pad_h"),
        ({"strides": [2**62, 1]}, "stride_h"),
        ({"dilations": [1, 2**40]}, "dilation_w"),
        ({"group": 2}, "group"),
        ({"kernel_shape": [5, 5]}, "kernel_shape"),
        ({"auto_pad": "VALID", "pads": [1, 1, 1, 1]}, "pads"),
        ({"auto_pad": "ROUND"}, "auto_pad"),
        ({"strides": [1]}, "strides"),
    ],
)
def test_a_convolution_that_contradicts_itself_is_listed_beside_the_others(attributes: dict, said: str) -> None:
    build = Build()
    sound = build.conv("x", 8, 3)
    bad = build.node("Conv", "x", build.weight(8, 3, 3, 3), **attributes)
    found = network(build.bytes(sound, bad))
    assert len(found.convolutions) == 1
    (reason,) = (each.left_out for each in found.operators if each.left_out)
    assert said in reason


def test_a_convolution_in_a_branch_is_listed() -> None:
    inner = Build()
    branch = inner.graph(inner.conv("x", 8, 3))
    branch.ClearField("input")
    build = Build()
    sound = build.conv("x", 8, 3)
    condition = helper.make_tensor("condition", TensorProto.BOOL, (), [True])
    end = build.node("If", "condition", then_branch=branch, else_branch=branch)
    model = build.model(sound, end)
    model.graph.initializer.append(condition)
    found = network(model.SerializeToString())
    assert len(found.convolutions) == 1
    assert [each.left_out for each in found.operators if "branch" in each.left_out]


def test_operators_that_no_time_counts_are_said(local: Local) -> None:
    build = Build(1, 64, 28, 28)
    y = build.node("MaxPool", build.conv("x", 8, 64), kernel_shape=[2, 2])
    for _ in range(2):
        y = build.node("Softmax", y)
    plan = plan_network(local, network(build.bytes(y)), limits(local))
    (said,) = (each for each in plan.remarks if "count for nobody" in each)
    assert said == "3 other operators of the network count for nobody: Softmax, MaxPool"
    alone = Build(1, 64, 28, 28)
    plan = plan_network(local, network(alone.bytes(alone.conv("x", 8, 64))), limits(local))
    assert not any("count for nobody" in each for each in plan.remarks)


def test_a_shared_weight_is_said_and_counted_once(local: Local) -> None:
    build = Build(1, 64, 28, 28)
    weight = build.weight(64, 64, 3, 3)
    once = build.node("Conv", "x", weight, pads=[1] * 4)
    found = network(build.bytes(build.node("Conv", once, weight, pads=[1] * 4)))
    assert any("shared by 2" in each for each in found.remarks)
    (layer,) = plan_network(local, found, limits(local)).layers
    assert (layer.count, layer.n_weights) == (2, 1)


def test_a_model_without_a_convolution_says_so(local: Local) -> None:
    build = Build()
    with pytest.raises(NoAdvice, match="no 2-D convolution"):
        plan_network(local, network(build.bytes(build.node("Relu", "x"))), limits(local))


@pytest.mark.parametrize(
    ("channels", "attributes", "said"),
    [
        (4, {}, "conv1: its input has 4 channels, and its weight is for 3"),
        (4, {"group": 2}, "conv1: its input has 4 channels, and its weight is for 3 in each of 2 groups"),
        (3, {"group": 0}, "conv1: group is 0; allowed: an integer from 1"),
        (3, {"pads": [-1, -1, -1, -1]}, "conv1: pad_h is -1; allowed: an integer from 0"),
    ],
)
def test_where_nothing_can_be_planned_the_node_is_named(
    local: Local, channels: int, attributes: dict[str, Any], said: str
) -> None:
    build = Build(1, channels, 8, 8)
    end = build.node("Conv", build.node("Relu", "x"), build.weight(8, 3, 3, 3), **attributes)
    with pytest.raises(NoAdvice) as caught:
        plan_network(local, network(build.bytes(end)), limits(local))
    assert str(caught.value).startswith(f"nothing in tested can be planned: {said}")


def test_a_reason_that_several_nodes_share_is_said_once(local: Local) -> None:
    build = Build(1, 4, 8, 8)
    ends = [build.node("Conv", "x", build.weight(8, 3, 3, 3)) for _ in range(3)]
    with pytest.raises(NoAdvice, match=r"planned: conv0 and 2 others: its input has 4 channels, and its weight is"):
        plan_network(local, network(build.bytes(*ends)), limits(local))


def test_a_device_of_which_nothing_is_known_is_not_said_to_run_nothing(local: Local) -> None:
    def unknown(problems: Sequence[ConvProblem]) -> list[NoAdvice]:
        why = {"cpu.gemm": "not measured on this layer, and there is no model of cpu"}
        return [NoAdvice("no advice", why)] * len(problems)

    found = Network("tested", tuple(network(stored("FLOAT", "FLOAT")).operators))
    with pytest.raises(NoAdvice) as caught:
        make_plan(found, unknown, lambda n_bytes: 0.0)
    assert "conv0 and 1 other: no variant is advised: not measured on this layer, and there" in str(caught.value)


def test_symbolic_sizes_are_asked_for_by_name() -> None:
    build = Build("batch", 3, "height", "width")
    body = build.bytes(build.conv("x", 8, 3))
    with pytest.raises(InvalidInput, match=r"'height', .*'width'.*allowed: .*height=224,width=224$") as caught:
        network(body)
    assert caught.value.field == "dims"
    with pytest.raises(InvalidInput, match=r"'width'.*a size for it, such as width=224$"):
        network(body, height=20)
    (conv,) = network(body, batch=4, height=20, width=30).convolutions
    assert (conv.problem.n, conv.problem.h, conv.problem.w) == (4, 20, 30)
    with pytest.raises(InvalidInput, match="depth"):
        network(body, height=20, width=30, depth=3)


def test_a_dimension_without_a_name_is_refused() -> None:
    build = Build("batch", 3, None, 8)
    with pytest.raises(InvalidInput, match="dimension 2 of input 'x'"):
        network(build.bytes(build.conv("x", 8, 3)))


def test_another_batch_than_the_model_was_written_for_is_said() -> None:
    build = Build(1, 3, 32, 32)
    found = network(build.bytes(build.conv("x", 8, 3)), batch=8)
    assert found.convolutions[0].problem.n == 8
    assert any("a batch of 1" in each for each in found.remarks)


def test_weights_that_lie_beside_the_model_are_never_read(tmp_path: Path) -> None:
    build = Build()
    model = build.model(build.conv("x", 8, 3))
    (weight,) = model.graph.initializer
    onnx.external_data_helper.set_external_data(weight, "weights.bin")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    (conv,) = network(model.SerializeToString()).convolutions
    assert conv.problem.k == 8


@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "a/../../b", "C:\\secret", "..\\secret"])
def test_weights_that_lie_elsewhere_are_refused_by_name(location: str) -> None:
    build = Build()
    model = build.model(build.conv("x", 8, 3))
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], location)
    model.graph.initializer[0].data_location = TensorProto.EXTERNAL
    with pytest.raises(InvalidInput, match="w0"):
        network(model.SerializeToString())


def hostile() -> dict[str, tuple[bytes, str]]:
    """Files that are no models, or mean harm, and what is said of each."""
    whole = block()
    functions = Build().model("x")
    functions.functions.append(helper.make_function("local", "bomb", ["a"], ["b"], [], []))
    functions.graph.node.append(helper.make_node("bomb", ["x"], ["y"], domain="local"))
    many = Build()
    many.nodes = [helper.make_node("Relu", ["x"], [f"y{place}"]) for place in range(MAX_NODES + 1)]
    twice = Build()
    twice.nodes = [helper.make_node("Relu", ["x"], ["y"]) for _ in range(2)]
    circle = Build()
    circle.nodes = [helper.make_node("Relu", ["b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    nested = b""
    for _ in range(300):  # a node's attribute's graph's node's attribute ...
        for field in (b"\x32", b"\x2a", b"\x0a"):
            nested = field + varint(len(nested)) + nested
    return {
        "nothing": (b"", "a graph of nodes"),
        "truncated": (whole[: len(whole) // 2], "cannot be parsed"),
        "no protobuf": (b"\xff" * 100, "cannot be parsed"),
        "text": (b"not a model at all", "cannot be parsed"),
        "functions": (functions.SerializeToString(), "bomb"),
        "many nodes": (many.bytes("y0"), f"at most {MAX_NODES} nodes"),
        "a tensor twice": (twice.bytes("y"), "made once"),
        "a circle": (circle.bytes("a"), "before it is read"),
        "a length of 2 GB": (b"\x3a\xff\xff\xff\xff\x07" + b"\0" * 100, "cannot be parsed"),
        "nested": (b"\x3a" + varint(len(nested)) + nested, "cannot be parsed"),
    }


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes((*parts, value))


@pytest.mark.parametrize("name", hostile())
def test_a_hostile_file_is_refused_with_a_reason(name: str) -> None:
    body, said = hostile()[name]
    with pytest.raises(InvalidInput, match=said) as caught:
        read_outline(body, batch=1)
    assert caught.value.field == "model"


def test_what_is_read_in_another_process_is_the_same() -> None:
    assert network_of(read_outline(block(), batch=4), "tested", DType.FLOAT32) == network(block(), 4)


def test_a_module_beside_the_model_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnx.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    assert read_outline(block(), batch=1).nodes


def test_the_reading_process_is_told_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONV_ADVISOR_STORE_URL", "postgresql://advisor:secret@host/db")
    told, start = {}, subprocess.Popen

    def noting(*command: object, env: dict[str, str], **more: object) -> object:
        told.update(env)
        return start(*command, env=env, **more)

    monkeypatch.setattr(reading.subprocess, "Popen", noting)
    assert read_outline(block(), batch=1).nodes
    assert "PATH" in told
    assert not any("secret" in value for value in told.values())


def test_a_reader_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PATIENCE_S", 0.01)
    with pytest.raises(InvalidInput, match="s of CPU time"):
        read_outline(block(), batch=1)


def test_a_reader_is_ended_with_whoever_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def hanging(_command: object, **options: Any) -> subprocess.Popen[bytes]:
        started.append(start([sys.executable, "-c", "import time; time.sleep(600)"], **options))
        return started[0]

    def check() -> None:
        raise WorkerError("the service is being stopped")

    monkeypatch.setattr(reading.subprocess, "Popen", hanging)
    with pytest.raises(WorkerError):
        read_outline(block(), batch=1, check=check)
    assert started[0].poll() == -signal.SIGKILL


def test_shapes_that_a_file_claims_are_not_believed() -> None:
    build = Build(1, 3, 32, 32)
    made = build.node("Relu", "x")
    model = build.model(build.conv(made, 8, 3))
    model.graph.value_info.append(helper.make_tensor_value_info(made, TensorProto.FLOAT, (1, 3, 64, 64)))
    (conv,) = network(model.SerializeToString()).convolutions
    assert (conv.problem.h, conv.problem.w) == (32, 32)


def test_a_shape_that_is_computed_in_the_model_is_followed() -> None:
    build = Build(1, 8, 9, 32)
    model = build.model(build.conv(build.node("Reshape", "x", build.node("Concat", "some", "rest", axis=0)), 8, 6))
    of_x = helper.make_node("Shape", ["x"], ["of_x"])
    some = helper.make_node("Slice", ["of_x", "from", "to"], ["some"])
    nodes = [of_x, some, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for name, values in (("from", [0]), ("to", [1]), ("rest", [6, 12, 32])):
        model.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, [len(values)], values))
    (conv,) = network(model.SerializeToString()).convolutions
    assert (conv.problem.c, conv.problem.h, conv.problem.w) == (6, 12, 32)


def test_a_convolution_whose_output_is_said_to_have_another_shape_is_listed() -> None:
    build = Build(1, 3, 32, 32)
    made = build.conv("x", 8, 3)
    outline = onnx_reader.outline_of(build.bytes(made), Request(1, {}))
    said = structs.replace(outline, shapes=outline.shapes | {made: (1, 8, 30, 30)})
    (operator,) = network_of(said, "tested", DType.FLOAT32).operators
    assert operator.left_out == "it makes 1x8x32x32, and the model's shapes say 1x8x30x30"


def test_a_tensor_of_a_size_that_no_memory_has_is_no_matter() -> None:
    build = Build()
    end = build.conv("x", 8, 3)
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [2**20, 2**10, 2**10, 2**10])
    model = build.model(end, build.node("ConstantOfShape", "shape"))
    model.graph.initializer.append(shape)  # 2^50 values, which nobody makes
    assert len(network(model.SerializeToString()).convolutions) == 1


def test_memory_that_reading_takes_is_limited() -> None:
    code = f"""
import resource
from {onnx_reader.__name__} import MEMORY_BYTES, limit
limit(0)
assert resource.getrlimit(resource.RLIMIT_AS)[1] == MEMORY_BYTES
try:
    bytearray(MEMORY_BYTES)
except MemoryError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=True)
    assert done.stdout == "refused\n"


def test_every_epilogue_of_a_plan_is_one_that_problems_have() -> None:
    assert {convolution.problem.epilogue for convolution in network(block()).convolutions} <= set(EVERY_EPILOGUE)


def run(*arguments: str | Path) -> str:
    """What the command prints."""
    done = CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["plan", *map(str, arguments)])
    if isinstance(done.exception, ConvAdvisorError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "block.onnx"
    path.write_bytes(block())
    return path


def test_the_command_prints_a_table(file: Path) -> None:
    said = run(file, "--batch", "32", "--dtype", "float16", "--device", "nvidia-h200")
    assert said.startswith("3 convolutions in ")
    assert "16-32-3-64-64-residual-relu" in said
    assert "PyTorch's default" in said


def test_the_table_holds_a_layer_against_what_json_does(file: Path) -> None:
    asked = (file, "--batch", "32", "--dtype", "float16", "--device", "nvidia-h200")
    (answer,) = json.loads(run(*asked, "--json"))["plans"]
    said = run(*asked)
    assert any(each["problem"]["layout"] == "nhwc" for each in answer["layers"]), "where the defaults of both differ"
    for layer in answer["layers"]:
        name = ConvProblem.parse(layer["problem"]["layer"]).brief
        (line,) = (each for each in said.splitlines() if each.startswith(name))
        assert line.endswith(f"{layer['pytorch_default_speedup']:.2f}×")


def test_the_command_prints_json_and_says_where_no_epilogue_is_counted(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, tmp_path)
    (answer,) = json.loads(run(file, "--batch", "32", "--json", "--device", "nvidia-h200"))["plans"]
    assert answer["n_convolutions"] == 3
    assert [layer["count"] for layer in answer["layers"]] == [1, 1, 1]
    assert not any(layer["epilogue_is_counted"] for layer in answer["layers"])
    said = "the times of 3 convolutions lack what follows"
    assert answer["remarks"][-1].startswith(said)
    assert said[1:] in run(file, "--batch", "32", "--device", "nvidia-h200")


def test_the_command_prints_a_line_for_each_batch(file: Path) -> None:
    answer = json.loads(run(file, "--batches", "1,8,32", "--json", "--device", "nvidia-h200"))
    assert [plan["batch"] for plan in answer["plans"]] == [1, 8, 32]
    assert len(run(file, "--batches", "1,8,32", "--device", "nvidia-h200").splitlines()) == 4


def test_the_command_prints_comma_separated_values(file: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(run(file, "--csv", "--device", "nvidia-h200"))))
    assert [row["count"] for row in rows] == ["1", "1", "1"]
    assert rows[2]["epilogue"] == "residual-relu"


@pytest.mark.parametrize(("name", "ships"), [("resnet50", True), ("vit_b_16", False)])
def test_a_model_of_torchvision_is_refused_without_it_and_no_other_planned(
    monkeypatch: pytest.MonkeyPatch, name: str, ships: bool
) -> None:
    monkeypatch.setattr(known, "find_spec", lambda package: None)
    with pytest.raises(InvalidInput, match="pip install torch torchvision") as caught:
        run(f"torchvision:{name}", "--device", "nvidia-h200")
    assert (f"{name}, a network that ships, is planned without" in str(caught.value)) == ships


def test_the_command_takes_a_precision_or_the_files_own(tmp_path: Path) -> None:
    half = tmp_path / "half.onnx"
    half.write_bytes(stored("FLOAT16"))
    assert "half.onnx float16 on nvidia-h200" in run(half, "--device", "nvidia-h200")
    assert "half.onnx tf32 on nvidia-h200" in run(half, "--dtype", "tf32", "--device", "nvidia-h200")
    assert "alexnet float32 on nvidia-h200" in run("alexnet", "--device", "nvidia-h200")


def test_a_network_that_ships_is_planned_by_its_name() -> None:
    (answer,) = json.loads(run("resnet50", "--json", "--device", "nvidia-h200"))["plans"]
    assert answer["n_convolutions"] == 53
    assert not answer["conversions"]


@pytest.mark.parametrize("arguments", [("nothing.onnx",), ("resnet50", "--batches", "1", "--batch", "2")])
def test_the_command_refuses_what_it_cannot_read(arguments: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput):
        run(*arguments)
