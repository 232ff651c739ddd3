"""What ends in a convolution: found where it may be, left where it may not, and computed as PyTorch computes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402 - it needs PyTorch
from torch.nn import functional  # noqa: E402 - it needs PyTorch

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation, Epilogue  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.loaded import plan_name  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.calls.own import ACTIVATE  # noqa: E402 - it needs PyTorch
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending  # noqa: E402 - it needs PyTorch
from tests.pytorch.comparing import (  # noqa: E402 - it needs PyTorch
    assert_compiled_is_eager,
    assert_near,
    compiled,
    random,
)
from tests.pytorch.conftest import EverythingAdvised  # noqa: E402 - it needs PyTorch
from tests.pytorch.networks import every_kind  # noqa: E402 - it needs PyTorch

NETWORKS = every_kind()
pytestmark = [
    pytest.mark.filterwarnings("default"),  # PyTorch's own, of its own parts
    pytest.mark.timeout(300),
]


@pytest.fixture
def ending(chooser: EverythingAdvised) -> EverythingAdvised:
    chooser.takes_endings = True
    return chooser


def epilogues(chooser: EverythingAdvised) -> list[str]:
    """The epilogues of the distinct problems that the chooser was asked for."""
    return sorted(str(problem.epilogue) for problem in chooser.layers)


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("is_channels_last", [False, True])
def test_outputs_are_those_of_eager_pytorch(
    name: str, is_channels_last: bool, ending: EverythingAdvised, quick: Any
) -> None:
    assert_compiled_is_eager(*NETWORKS[name], is_channels_last=is_channels_last)


@pytest.mark.slow
def test_inductor_takes_the_operator_as_it_is(ending: EverythingAdvised) -> None:
    network, shape = NETWORKS["resnet"]
    x = random(*shape)
    with torch.no_grad():
        expected = network(x)
        assert_near(compiled(network)(x), expected, tolerance=1e-4)
    assert "bias-residual-relu" in epilogues(ending)


def test_residual_blocks_end_in_their_convolutions(ending: EverythingAdvised, quick: Any) -> None:
    network, shape = NETWORKS["resnet"]
    with torch.no_grad():
        compiled(network)(random(*shape))
    assert epilogues(ending) == ["bias", *["bias-relu"] * 4, *["bias-residual-relu"] * 2]


CONV = nn.Conv2d(8, 8, 3, padding=1).eval()
WEIGHT = CONV.weight.detach()


def mutated_input(x: Any) -> Any:
    y = CONV(x)
    x.relu_()
    return torch.relu(y + x)


def mutated_residual(x: Any) -> Any:
    residual = x * 2
    y = CONV(x) + residual
    residual.mul_(3)
    return torch.relu(y) + residual


def added_into_the_residual(x: Any) -> Any:
    residual = x * 2
    residual += CONV(x)
    return torch.relu(residual) * residual


def added_into_what_nobody_else_reads(x: Any) -> Any:
    y = functional.max_pool2d(x, 3, 1, 1)
    y += CONV(x)
    return torch.relu_(y)


def added_into_what_has_a_view(x: Any) -> Any:
    y = functional.max_pool2d(x, 3, 1, 1)
    row = y[:, :, 0]
    y += CONV(x)
    return torch.relu(y) + row[:, :, None]


def added_into_a_view_of_the_input(x: Any) -> Any:
    y = x.view(2, 8, 6, 6)
    y += CONV(x)
    return torch.relu(y)


def added_into_the_input(x: Any) -> Any:
    x += CONV(x)
    return torch.relu(x)


def set_item_between(x: Any) -> Any:
    y = CONV(x)
    x[:, :4] = 0
    return torch.relu(y + x)


def two_readers(x: Any) -> Any:
    y = CONV(x)
    return torch.relu(y) + y


def added_to_itself(x: Any) -> Any:
    y = CONV(x)
    return torch.relu(y + y)


def read_after_the_sum(x: Any) -> Any:
    y = CONV(x) + x
    return torch.relu(y) * y


def of_two_convolutions(x: Any) -> Any:
    return torch.relu(CONV(x) + functional.conv2d(x, WEIGHT, padding=1))


def pooled_between(x: Any) -> Any:
    y = CONV(x)
    y += functional.conv2d(functional.avg_pool2d(x, 1, 1, 0, True, False), WEIGHT, padding=1)
    return torch.relu(y)


def gated(x: Any) -> Any:
    y = CONV(x) + x
    return y * torch.sigmoid(y)


def gated_in_place(x: Any) -> Any:
    y = CONV(x)
    gate = functional.hardsigmoid(y)
    return y.mul_(gate)


def gate_read_twice(x: Any) -> Any:
    y = CONV(x)
    gate = torch.sigmoid(y)
    return y * gate + gate


def gate_of_what_follows(x: Any) -> Any:
    y = CONV(x)
    y = y * 2
    return y * torch.sigmoid(CONV(x))


CASES: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "in place on what is its own": (lambda x: CONV(x).add_(x).relu_(), ["bias-residual-relu"]),
    "the residual first": (lambda x: functional.silu(x + CONV(x), inplace=True), ["bias-residual-silu"]),
    "no bias": (lambda x: functional.conv2d(x, WEIGHT, padding=1).sigmoid(), ["sigmoid"]),
    "nothing": (lambda x: functional.conv2d(x, WEIGHT, padding=1) * 2, [""]),
    "gelu": (lambda x: functional.gelu(CONV(x)), ["bias-gelu"]),
    "gelu by tanh": (lambda x: functional.gelu(CONV(x), approximate="tanh"), ["bias-gelu_tanh"]),
    "relu6": (nn.Sequential(CONV, nn.ReLU6()), ["bias-relu6"]),
    "another clip": (lambda x: functional.hardtanh(CONV(x)), ["bias"]),
    "hard swish": (lambda x: functional.hardswish(CONV(x)), ["bias-hardswish"]),
    "leaky": (lambda x: functional.leaky_relu(CONV(x)), ["bias-leaky_relu"]),
    "leaky by another slope": (lambda x: functional.leaky_relu(CONV(x), 0.2), ["bias"]),
    "twice": (lambda x: torch.sigmoid(torch.relu(CONV(x))), ["bias-relu"]),
    "a sum behind the activation": (lambda x: torch.relu(CONV(x)) + x, ["bias-relu"]),
    "scaled": (lambda x: torch.relu(torch.add(CONV(x), x, alpha=2)), ["bias"]),
    "broadcast": (lambda x: torch.relu(CONV(x) + x[:, :, :1]), ["bias"]),
    "a number": (lambda x: torch.relu(CONV(x) + 1), ["bias-relu"]),
    "another precision": (lambda x: torch.relu(CONV(x) + x.double()), ["bias"]),
    "another layout": (lambda x: torch.relu(x.to(memory_format=torch.channels_last) + CONV(x)), ["bias"]),
    "the input changes": (mutated_input, ["bias"]),
    "the input is written to": (set_item_between, ["bias"]),
    "the residual changes": (mutated_residual, ["bias-residual"]),
    "into a residual of its own": (added_into_what_nobody_else_reads, ["bias-residual-relu"]),
    "into a residual with a view": (added_into_what_has_a_view, ["bias"]),
    "into a view of the input": (added_into_a_view_of_the_input, ["bias"]),
    "into the input": (added_into_the_input, ["bias"]),
    "into the residual": (added_into_the_residual, ["bias-residual"]),
    "two readers": (two_readers, ["bias"]),
    "added to itself": (added_to_itself, ["bias"]),
    "read after the sum": (read_after_the_sum, ["bias-residual"]),
    "a pool that rounds up in between": (pooled_between, ["bias-residual-relu", ""]),
    "times its sigmoid": (gated, ["bias-residual-silu"]),
    "times its hard sigmoid": (gated_in_place, ["bias-hardswish"]),
    "times a gate that others read": (gate_read_twice, ["bias"]),
    "times another's gate": (gate_of_what_follows, ["bias", "bias-sigmoid"]),
    "clamped from below": (lambda x: CONV(x).clamp(min=0), ["bias-relu"]),
    "clamped in place": (lambda x: torch.clamp_(CONV(x), 0, 6), ["bias-relu6"]),
    "clamped by its least": (lambda x: CONV(x).clamp_min_(0.0), ["bias-relu"]),
    "clamped otherwise": (lambda x: CONV(x).clamp(-1, 1), ["bias"]),
    "clamped by a tensor": (lambda x: torch.clamp(CONV(x), x), ["bias"]),
    "leaky in place": (lambda x: functional.leaky_relu_(CONV(x)), ["bias-leaky_relu"]),
    "by the name of its input": (lambda x: functional.relu(input=CONV(x)), ["bias-relu"]),
    "of two convolutions": (of_two_convolutions, ["bias-residual-relu", ""]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_ends_in_a_convolution(name: str, ending: EverythingAdvised, quick: Any) -> None:
    function, endings = CASES[name]
    x = random(2, 8, 6, 6)
    with torch.no_grad():
        eager_x, compiled_x = x.clone(), x.clone()
        expected = function(eager_x)
        ours = compiled(function)(compiled_x)
    assert torch.allclose(compiled_x, eager_x, rtol=1e-4, atol=1e-5)
    assert epilogues(ending) == sorted(endings)
    assert ours.dtype == expected.dtype
    assert ours.stride() == expected.stride()
    assert torch.allclose(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_input_is_as_changed_as_it_would_be(ending: EverythingAdvised, quick: Any) -> None:
    eager_x, compiled_x = random(2, 8, 6, 6), random(2, 8, 6, 6)
    with torch.no_grad():
        mutated_input(eager_x)
        compiled(mutated_input)(compiled_x)
    assert torch.equal(eager_x, compiled_x)


def test_under_autocast_what_is_added_must_be_as_precise(ending: EverythingAdvised, quick: Any) -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return torch.relu(CONV(torch.relu(CONV(x))) + x)

    x = random(2, 8, 6, 6)
    with torch.no_grad():
        expected, ours = function(x), compiled(function)(x)
    assert epilogues(ending) == ["bias", "bias-relu"]
    assert ours.dtype == expected.dtype == torch.float32
    assert torch.allclose(ours, expected, rtol=0.05, atol=0.05)


def operands(epilogue: Epilogue, layout: str, *, requires_grad: bool = False, dtype: Any = torch.float32) -> list[Any]:
    memory_format = torch.channels_last if layout == "nhwc" else torch.contiguous_format
    generator = torch.Generator().manual_seed(0)

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, generator=generator, dtype=dtype)

    x, weight, residual = (
        values.to(memory_format=memory_format)
        for values in (tensor(2, 4, 5, 6), tensor(6, 2, 3, 3), tensor(2, 6, 3, 6))
    )
    tensors = [x, weight, tensor(6) if epilogue.bias else None, residual if epilogue.residual else None]
    plan = plan_name(f"5x6-2-3x3-6-4-stride2x1-pad1x1-dilation1x1-groups2-{epilogue}-float32-{layout}")
    leaves = [None if values is None else values.requires_grad_(requires_grad) for values in tensors]
    return [*leaves, [2, 1], [1, 1], [1, 1], 2, epilogue.activation.value, plan]


def by_pytorch(x: Any, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
    stride, padding, dilation, groups, activation, _ = rest
    y = torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return ACTIVATE[Activation(activation)](y if residual is None else y + residual)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("epilogue", EVERY_EPILOGUE, ids=str)
def test_it_is_the_convolution_and_what_follows(epilogue: Epilogue, layout: str) -> None:
    arguments = operands(epilogue, layout)
    y = conv2d_ending(*arguments)
    assert torch.allclose(y, by_pytorch(*arguments), atol=1e-5)
    assert y.is_contiguous(memory_format=torch.channels_last) is (layout == "nhwc")


@pytest.mark.parametrize("epilogue", ["bias-residual-relu", "residual", "bias-gelu_tanh"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_it_is_what_pytorch_asks_of_an_operator(epilogue: str, layout: str, requires_grad: bool) -> None:
    arguments = operands(Epilogue.parse(epilogue), layout, requires_grad=requires_grad)
    torch.library.opcheck(conv2d_ending, tuple(arguments))


@pytest.mark.parametrize("activation", Activation)
def test_its_gradients_are_those_of_pytorchs_own(activation: Activation) -> None:
    epilogue = Epilogue(bias=True, residual=True, activation=activation)
    arguments, own_arguments = (operands(epilogue, "nchw", requires_grad=True) for _ in range(2))
    conv2d_ending(*arguments).square().mean().backward()
    by_pytorch(*own_arguments).square().mean().backward()
    for ours, expected in zip(arguments[:4], own_arguments[:4], strict=True):
        assert torch.allclose(ours.grad, expected.grad, atol=1e-5)
