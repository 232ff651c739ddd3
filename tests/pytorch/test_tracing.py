"""Plans of PyTorch models: what is found of them without computing anything, and what is left out and why."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.data.errors import InvalidInput, NoAdvice  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.tracing import network_of  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import FrozenBatchNorm, every_kind  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = pytest.mark.filterwarnings("default")  # PyTorch's own, of its own parts


@pytest.fixture(autouse=True)
def _full_precision() -> Any:
    with torch.backends.cudnn.flags(allow_tf32=False):
        yield


def convolutions(network: nn.Module, *shape: int) -> dict[str, str]:
    """The problem of each convolution, by its name."""
    traced = network_of(network.eval(), torch.zeros(shape))
    return {operator.name: operator.problem.short for operator in traced.operators if operator.problem}


def test_each_convolution_with_what_ends_in_it() -> None:
    network, shape = NETWORKS["resnet"]
    assert convolutions(network, *shape) == {
        "0.0": "33x32-2-7x7-8-3-stride2x2-pad3x3-dilation1x1-groups1-bias-relu",
        "2.conv1": "9x8-2-3x3-8-8-stride1x1-pad1x1-dilation1x1-groups1-bias-relu",
        "2.conv2": "9x8-2-3x3-8-8-stride1x1-pad1x1-dilation1x1-groups1-bias-residual-relu",
        "3.project.0": "9x8-2-1x1-16-8-stride2x2-pad0x0-dilation1x1-groups1-bias",
        "3.conv1": "9x8-2-3x3-16-8-stride2x2-pad1x1-dilation1x1-groups1-bias-relu",
        "3.conv2": "5x4-2-3x3-16-16-stride1x1-pad1x1-dilation1x1-groups1-bias-residual-relu",
        "4.conv1": "5x4-2-3x3-16-16-stride1x1-pad1x1-dilation1x1-groups1-bias-relu",
        "4.conv2": "5x4-2-3x3-16-16-stride1x1-pad1x1-dilation1x1-groups1-bias-residual-relu",
    }


@pytest.mark.parametrize(
    ("network", "epilogue", "key"),
    [
        (nn.Sequential(nn.Conv2d(4, 8, 3, bias=False), FrozenBatchNorm(8), nn.ReLU()), "bias-relu", "pad0x0"),
        (nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(4, 8, 3, 2, bias=False)), "plain", "pad0x0-end1x1"),
    ],
    ids=["frozen batch norm", "pad"],
)
def test_a_plan_is_of_what_the_backend_makes_of_a_model(network: nn.Module, epilogue: str, key: str) -> None:
    traced = network_of(network.eval(), torch.zeros(1, 4, 9, 9))
    (problem,) = (operator.problem for operator in traced.operators if operator.problem)
    assert str(problem.epilogue or "plain") == epilogue
    assert key in problem.key
    assert {"pad", "mul", "add", "rsqrt"}.isdisjoint(operator.kind for operator in traced.operators)


@pytest.mark.parametrize("name", NETWORKS)
def test_what_an_operator_reads_was_made_before(name: str) -> None:
    network, shape = NETWORKS[name]
    traced = network_of(network, torch.zeros(shape))
    known = {"x", "input"}
    for operator in traced.operators:
        assert known.issuperset(operator.reads), operator
        known.update(operator.writes)
    assert traced.outputs <= known
    assert any(traced.n_bytes.values())


def test_a_plan_has_counts_times_and_gains() -> None:
    network, _ = NETWORKS["resnet"]
    plan = conv_advisor.torch.plan(network, torch.zeros(8, 3, 224, 224), device="nvidia-h200")
    assert plan.n_convolutions == 8
    by_name = {name: layer for layer in plan.layers for name in layer.names}
    assert by_name["3.conv2"].count == 2
    assert str(by_name["3.conv2"].problem.epilogue) == "bias-residual-relu"
    assert sum(layer.share for layer in plan.layers) <= 1 + 1e-12
    assert plan.time_ms > 0
    assert all(total.time_ms for total in plan.rivals.values())


def test_a_plan_keeps_the_limits_that_advice_has() -> None:
    network, x = nn.Conv2d(64, 64, 3, padding=1).eval(), torch.zeros(1, 64, 56, 56, dtype=torch.float16)
    network = network.half()

    def variants(**limits: Any) -> set[str]:
        plan = conv_advisor.torch.plan(network, x, device="nvidia-h200", **limits)
        return {layer.advice.best.variant for layer in plan.layers}

    assert not any(variant.startswith("cudnn.") for variant in variants())
    assert all(variant.startswith("cudnn.") for variant in variants(only="cudnn"))
    for limits, message in (
        ({"only": "cublas"}, "only is 'cublas'"),
        ({"max_workspace_bytes": -1}, "max_workspace_bytes is -1"),
    ):
        with pytest.raises(InvalidInput, match=message):
            variants(**limits)


def test_nothing_is_computed() -> None:
    network, x = nn.Conv2d(64, 64, 3, padding=1).to("meta").eval(), torch.zeros(512, 64, 224, 224, device="meta")
    (layer,) = conv_advisor.torch.plan(network, x, device="nvidia-h200").layers
    assert layer.problem.n == 512


@pytest.mark.parametrize(("is_allowed", "wanted"), [(False, "float32"), (True, "tf32")])
def test_the_precision_is_the_models(is_allowed: bool, wanted: str) -> None:
    network = nn.Conv2d(8, 8, 3).eval()
    with torch.backends.cudnn.flags(allow_tf32=is_allowed):
        (operator,) = network_of(network, torch.zeros(1, 8, 9, 9)).operators
    assert operator.problem is not None
    assert operator.problem.dtype == wanted
    (operator,) = network_of(network.bfloat16(), torch.zeros(1, 8, 9, 9, dtype=torch.bfloat16)).operators
    assert operator.problem is not None
    assert operator.problem.dtype == "bfloat16"


def test_a_shared_weight_is_told() -> None:
    network, shape = NETWORKS["shared weight"]
    traced = network_of(network, torch.zeros(shape))
    assert traced.remarks == ("weight conv.weight is shared by 2 convolutions",)
    assert len({operator.name for operator in traced.convolutions}) == 1


LEFT_OUT = {
    "1-D": (nn.Conv1d(2, 2, 3), (1, 2, 9), "in one dimension"),
    "3-D": (nn.Conv3d(2, 2, 3), (1, 2, 5, 5, 5), "in three dimensions"),
    "transposed": (nn.ConvTranspose2d(2, 2, 3), (1, 2, 5, 5), "transposed"),
    "float64": (nn.Conv2d(2, 2, 3).double(), (1, 2, 5, 5), "float64"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_none_of_ours_is_listed_and_the_rest_is_planned(name: str) -> None:
    layer, shape, reason = LEFT_OUT[name]
    dtype = next(layer.parameters()).dtype
    network = Both(layer)
    plan = conv_advisor.torch.plan(
        network, (torch.zeros(shape, dtype=dtype), torch.zeros(1, 8, 9, 9)), device="nvidia-h200"
    )
    (left_out,) = plan.left_out
    assert left_out.name.startswith("other")
    assert reason in left_out.reason
    assert [layer.names for layer in plan.layers] == [("ours",)]


class Both(nn.Module):
    """A convolution, and another layer beside it."""

    def __init__(self, other: nn.Module) -> None:
        super().__init__()
        self.other, self.ours = other, nn.Conv2d(8, 8, 3)
        self.eval()

    def forward(self, x: Any, y: Any) -> Any:
        return self.other(x), self.ours(y)


class WithinAutocast(nn.Module):
    """A part of it runs in another precision."""

    def __init__(self) -> None:
        super().__init__()
        self.ours, self.inner = nn.Conv2d(8, 8, 3), nn.Conv2d(8, 8, 3)
        self.eval()

    def forward(self, x: Any) -> Any:
        y = self.ours(x)
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(y)


def test_a_part_that_is_wrapped_is_told() -> None:
    traced = network_of(WithinAutocast(), torch.zeros(1, 8, 9, 9))
    assert [operator.name for operator in traced.convolutions] == ["ours"]
    assert [operator.left_out for operator in traced.operators if operator.left_out] == [
        "it wraps a part of the model, which is not looked into"
    ]


class Branching(nn.Module):
    """What it computes depends on values."""

    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


def test_what_cannot_be_planned_is_refused_by_name() -> None:
    x = torch.zeros(1, 8, 9, 9)
    with pytest.raises(InvalidInput, match=r"model is 'Branching'.* torch\.export can trace"):
        conv_advisor.torch.plan(Branching().eval(), x)
    with pytest.raises(InvalidInput, match=r"model\.training is True"):
        conv_advisor.torch.plan(nn.Conv2d(8, 8, 3), x)
    with pytest.raises(NoAdvice, match="no 2-D convolution"):
        conv_advisor.torch.plan(nn.ReLU().eval(), x, device="nvidia-h200")
