"""What follows a convolution: how it is written, read, and what it refuses."""

from __future__ import annotations

import hashlib
import pickle
from itertools import product
from typing import Any

import pytest

from conv_advisor.data import networks
from conv_advisor.data.epilogue import EVERY_EPILOGUE, PLAIN, Activation, Epilogue
from conv_advisor.data.errors import InvalidLayerName, InvalidProblem
from conv_advisor.data.problem import ConvProblem, DType, Layout

LAYERS = ("14-1-3-256-128", "37x37-1-7x7-8-3-stride2x2-pad3x3-dilation1x1-groups1")


def test_every_combination_is_listed_once_and_none_comes_first() -> None:
    assert set(EVERY_EPILOGUE) == {Epilogue(*parts) for parts in product((False, True), (False, True), Activation)}
    assert len(EVERY_EPILOGUE) == 4 * len(Activation)
    assert EVERY_EPILOGUE[0] == PLAIN == Epilogue()


def test_an_epilogue_is_written_by_its_parts() -> None:
    assert str(Epilogue(bias=True, residual=True, activation=Activation.GELU_TANH)) == "bias-residual-gelu_tanh"
    assert str(Epilogue(activation=Activation.RELU)) == "relu"
    assert not str(PLAIN)


@pytest.mark.parametrize("epilogue", EVERY_EPILOGUE, ids=str)
def test_what_is_printed_is_read(epilogue: Epilogue) -> None:
    assert Epilogue.parse(str(epilogue)) == epilogue
    assert bool(epilogue) == (epilogue != PLAIN)
    assert pickle.loads(pickle.dumps(epilogue)) == epilogue  # noqa: S301 - what a worker is sent
    for layer in LAYERS:
        problem = ConvProblem.parse(layer, epilogue=epilogue)
        assert ConvProblem.parse(problem.short) == problem
        assert problem.short == "-".join(filter(None, (layer, str(epilogue))))
        assert problem.key == f"{problem.short}-float32-nchw"
        assert problem.plain.short == layer
        assert problem.plain is problem.plain  # made once: advice asks for it again and again
        assert (problem == problem.plain) is (epilogue == PLAIN)


@pytest.mark.parametrize("text", ["none", "relu-bias", "bias+relu", "bias-", "-relu", "RELU", "residual-bias", "tanh"])
def test_other_text_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidProblem, match=r"^epilogue is .*bias, residual, an activation \(relu, .*sigmoid\)"):
        Epilogue.parse(text)
    with pytest.raises(InvalidLayerName):
        ConvProblem.parse(f"14-1-3-256-128-{text}")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("bias", 1, "true or false"),
        ("residual", "yes", "true or false"),
        ("activation", "tanh", "none, relu, relu6, leaky_relu, silu, gelu, gelu_tanh, hardswish, sigmoid"),
        ("activation", None, "none, relu, relu6, leaky_relu, silu, gelu, gelu_tanh, hardswish, sigmoid"),
    ],
)
def test_a_bad_part_is_named_with_its_value_and_what_is_allowed(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(InvalidProblem) as caught:
        Epilogue(**{field: value})
    assert (caught.value.field, caught.value.value, caught.value.allowed) == (field, repr(value), allowed)


def test_an_activation_may_be_given_by_its_name() -> None:
    written: Any = "silu"
    assert Epilogue(activation=written).activation is Activation.SILU


def test_a_problem_takes_an_epilogue_and_nothing_else_for_one() -> None:
    written: Any = "relu"
    with pytest.raises(InvalidProblem, match=r"^epilogue is 'relu'; allowed: an Epilogue"):
        ConvProblem(1, 1, 1, 1, 1, 1, 1, epilogue=written)


def test_bias_and_residual_are_read_once() -> None:
    plain = ConvProblem.parse("14-2-3-256-128", dtype="float16")
    assert ConvProblem.parse("14-2-3-256-128-bias-residual-relu", dtype="float16").bytes == (
        plain.bytes + 2 * 256 + plain.y_bytes
    )


def test_plain_layers_are_written_as_ever() -> None:
    groups = ("seeds", "fourth-seed", "more-networks", "held-out")  # what shipped then
    problems = [p for name in groups for p in networks.problems(name, batches=[1], dtypes=DType, layouts=Layout)]
    digest = hashlib.sha256("\n".join(problem.key for problem in problems).encode()).hexdigest()
    assert digest == "37e7f22d1cde8333fee0ea56fe2aa40cde2c14a473e5b11a9221329fe39fd58c"
    assert not any(problem.epilogue or problem.has_uneven_padding for problem in problems)
