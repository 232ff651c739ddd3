"""Zeros that a graph puts around an image become the padding of the convolutions that read it, at four sides."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch
from torch.nn import functional  # noqa: E402 - it needs PyTorch

import conv_advisor.torch  # noqa: E402 - it needs PyTorch
from conv_advisor.data.problem import ConvProblem, Layout  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.checking import Operands  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.layers import geometry_of_problem  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.choosing.choice import Choice  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators.conv2d import conv2d  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import assert_near, compiled, kinds, random  # noqa: E402 - it needs PyTorch
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch

pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]
SHAPE = (2, 4, 8, 7)
UNEVEN = "8x7-1-3x3-8-4-stride2x2-pad0x1-end1x1-dilation1x1-groups1-float32-nchw"


class Same(nn.Conv2d):
    """timm's Conv2dSame, padded as TensorFlow pads."""

    def forward(self, x: Any) -> Any:
        (above, below), (left, right) = (
            (total // 2, total - total // 2)
            for total in (
                max((math.ceil(size / stride) - 1) * stride + (taps - 1) * dilation + 1 - size, 0)
                for size, stride, taps, dilation in zip(
                    x.size()[-2:], self.stride, self.kernel_size, self.dilation, strict=True
                )
            )
        )
        x = functional.pad(x, (left, right, above, below), value=0)
        return functional.conv2d(x, self.weight, self.bias, self.stride, (0, 0), self.dilation, self.groups)


class Padded(nn.Module):
    """A convolution, and a function that pads its input for it."""

    def __init__(self, call: Callable[[Any, Any], Any], **geometry: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.call = nn.Conv2d(4, 8, 3, **geometry), call
        self.other = nn.Conv2d(4, 8, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


def then_conv(*amounts: int, **options: Any) -> Callable[[Any, Any], Any]:
    return lambda net, x: net.conv(functional.pad(x, amounts, **options))


def for_both(net: Any, x: Any) -> Any:
    padded = functional.pad(x, (0, 1, 1, 0))
    return net.conv(padded), net.other(padded)


TAKEN: dict[str, tuple[nn.Module, list[str]]] = {
    "as TensorFlow pads": (Same(4, 8, 3, 2), ["-stride2x2-pad0x1-end1x1"]),
    "as TensorFlow pads, dilated": (Same(4, 8, 3, dilation=2), ["-stride1x1-pad2x2-dilation2x2"]),
    "as TensorFlow pads, in groups": (Same(4, 8, 4, groups=2), ["-stride1x1-pad1x1-end2x2"]),
    "a module": (nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(4, 8, 3, 2)), ["-stride2x2-pad0x0-end1x1"]),
    "evenly": (Padded(then_conv(2, 2, 1, 1)), ["-stride1x1-pad1x2-dilation1x1"]),
    "columns alone": (Padded(then_conv(0, 3)), ["-pad0x0-end0x3"]),
    "beside its own": (Padded(then_conv(0, 1, 2, 0, value=0.0), padding=1), ["-pad3x1-end1x2"]),
    "beside its own by name": (Padded(then_conv(0, 1, 2, 0), padding="same"), ["-pad3x1-end1x2"]),
    "beside none by name": (Padded(then_conv(0, 1, 2, 0), padding="valid"), ["-pad2x0-end0x1"]),
    "by name": (
        Padded(lambda net, x: net.conv(functional.pad(input=x, pad=[1, 0, 0, 0], mode="constant"))),
        ["-pad0x1"],
    ),
    "beside its own, uneven": (
        Padded(lambda net, x: functional.conv2d(functional.pad(x, (1, 0)), net.conv.weight[..., :2], padding="same")),
        ["-pad1x1-dilation"],
    ),
    "by nothing": (Padded(then_conv(0, 0, 0, 0)), ["-pad0x0-dilation"]),
    "of all dimensions": (Padded(then_conv(1, 2, 0, 0, 0, 0, 0, 0)), ["-pad0x1-end0x2"]),
    "twice": (
        Padded(lambda net, x: net.conv(functional.pad(functional.pad(x, (1, 0)), (0, 0, 1, 0)))),
        ["-pad1x1-end0x0"],
    ),
    "for two": (Padded(for_both), ["-pad1x0-end0x1", "-pad2x1-end1x2"]),
}


@pytest.mark.parametrize("is_exported", [False, True])
@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("name", TAKEN)
def test_convolutions_pad_themselves(
    name: str, layout: Layout, is_exported: bool, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, padded = copy.deepcopy(TAKEN[name][0]).eval(), TAKEN[name][1]
    chooser.times_ms = {timed: 0.01 if timed is layout else 1.0 for timed in Layout}
    x = random(*SHAPE)
    program = torch.export.export(network, (x,)).module() if is_exported else network
    seen, ours = kinds(program, x, monkeypatch=monkeypatch)
    assert not {"pad", "constant_pad_nd", "conv2d"} & set(seen)
    keys = [problem.key for problem in chooser.layers if problem.layout is layout]
    assert len(keys) == len(padded)
    assert all(sides in key for sides, key in zip(padded, keys, strict=True))
    with torch.no_grad():
        eager = network(x)
    for y, expected in zip(*((ys if isinstance(ys, tuple) else (ys,)) for ys in (ours, eager)), strict=True):
        assert_near(y, expected)


@pytest.mark.parametrize("name", TAKEN)
def test_what_stays_pytorchs_is_padded_ahead_again(
    name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch, quick: Any
) -> None:
    network, x = copy.deepcopy(TAKEN[name][0]).eval(), random(*SHAPE)
    monkeypatch.setattr(chooser, "choose", lambda layers, _: dict.fromkeys(layers, Choice(None, reason="none is")))
    with torch.no_grad():
        ours, eager = compiled(network)(x), network(x)
    for y, expected in zip(*((ys if isinstance(ys, tuple) else (ys,)) for ys in (ours, eager)), strict=True):
        assert_near(y, expected)
        assert y.stride() == expected.stride()


def test_a_swapped_layer_pads_its_sides_as_same_asks(chooser: EverythingAdvised) -> None:
    network, x = nn.Sequential(nn.Conv2d(4, 8, (2, 4), padding="same", dilation=(1, 3))).eval(), random(*SHAPE)
    with torch.no_grad():
        expected = network(x)
        assert conv_advisor.torch.optimize(network, x).n_swapped == 1
        assert_near(network(x), expected)
    (problem,) = chooser.layers
    assert (problem.pad_h, problem.pad_w, problem.pad_h_end, problem.pad_w_end) == (0, 4, 1, 5)


def read_by_another(net: Any, x: Any) -> Any:
    padded = functional.pad(x, (1, 1, 1, 1))
    return net.conv(padded), padded.sum()


def written_between(net: Any, x: Any) -> Any:
    padded = functional.pad(x, (1, 1, 1, 1))
    x.mul_(2)
    return net.conv(padded), x


def written_through_a_view(net: Any, x: Any) -> Any:
    padded = functional.pad(x, (1, 1, 1, 1))
    x[:, 2:].mul_(2)
    return net.conv(padded), x


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "ones": then_conv(1, 1, 1, 1, value=1.0),
    "reflected": then_conv(1, 1, 1, 1, mode="reflect"),
    "repeated": then_conv(1, 1, 1, 1, mode="replicate"),
    "cropped": then_conv(-1, 1, 0, 0),
    "read by another": read_by_another,
    "written between": written_between,
    "written between, through a view": written_through_a_view,
    "a weight": lambda net, x: functional.conv2d(x, functional.pad(net.conv.weight, (1, 0, 1, 0))),
    "channels": lambda net, x: net.conv(functional.pad(x[:, :3], (0, 0, 0, 0, 0, 1))),
}


@pytest.mark.parametrize("name", LEFT)
def test_other_pads_stay(name: str, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = Padded(LEFT[name]).eval(), random(*SHAPE)
    seen, ours = kinds(network, x.clone(), monkeypatch=monkeypatch)
    assert "pad" in seen
    with torch.no_grad():
        eager = network(x.clone())
    for y, expected in zip(*((ys if isinstance(ys, tuple) else (ys,)) for ys in (ours, eager)), strict=True):
        assert_near(y, expected)


def test_pads_stay_where_folding_is_off(chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x = TAKEN["a module"][0], random(*SHAPE)
    seen, _ = kinds(network, x, monkeypatch=monkeypatch, options={"fold": False})
    assert "pad" in seen


@pytest.mark.parametrize(("name", "is_taken"), [("a module", True), ("as TensorFlow pads", False)])
def test_a_graph_of_any_shape_pads_what_is_known(
    name: str, is_taken: bool, chooser: EverythingAdvised, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = copy.deepcopy(TAKEN[name][0]).eval()
    seen, _ = kinds(network, random(*SHAPE), monkeypatch=monkeypatch, dynamic=True)
    assert ("pad" not in seen) == is_taken
    call = compiled(network, dynamic=True)
    with torch.no_grad():
        for shape in (SHAPE, (3, 4, 9, 9)):
            assert_near(call(random(*shape)), network(random(*shape)))


def test_gradients_go_through_an_uneven_padding() -> None:
    problem = ConvProblem.parse(UNEVEN.removesuffix("-float32-nchw"), dtype="float32")
    *geometry, _ = (*geometry_of_problem(problem).arguments, None)
    x, weight = random(1, 4, 8, 7).double().requires_grad_(), random(8, 4, 3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda *tensors: conv2d(*tensors, *geometry, problem.key), (x, weight))


@pytest.mark.parametrize("layout", Layout)
def test_the_operators_pad_four_sides(layout: Layout) -> None:
    problem = ConvProblem.parse(UNEVEN.removesuffix("-float32-nchw"), dtype="float32", layout=layout)
    operands, geometry = Operands(problem, "cpu"), geometry_of_problem(problem).arguments
    expected = functional.conv2d(functional.pad(operands.x, (1, 1, 0, 1)), operands.weight, stride=2)
    assert_near(conv2d(operands.x, operands.weight, *geometry, problem.key), expected)
    assert operands.own_error < 1e-6
    for operator, rest in ((conv2d, (problem.key,)), (conv2d_ending, ("relu", problem.key))):
        ends = () if operator is conv2d else (None, None)
        torch.library.opcheck(operator, (operands.x, operands.weight, *ends, *geometry, *rest))


def test_a_kernel_runs_what_is_padded_unevenly(fake_gpu: Any) -> None:
    network, x = copy.deepcopy(TAKEN["as TensorFlow pads"][0]).eval(), random(*SHAPE)
    with torch.no_grad():
        call = torch.compile(network, backend=conv_advisor.torch.backend, options={"inductor": False})
        call(x)
        fake_gpu.runner.launches.clear()
        assert_near(call(x), network(x))
    (problem,) = fake_gpu.runner.launches
    assert (problem.pad_h, problem.pad_w, problem.pad_h_end, problem.pad_w_end) == (0, 1, 1, 1)
