"""ONNX models that hold what few do: numbers without an end, parameters as inputs, types that nobody knows."""

from __future__ import annotations

import subprocess
import sys
from math import inf, nan

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from conv_advisor.app.plans import onnx_reader
from conv_advisor.app.plans.onnx_network import network_of
from conv_advisor.app.plans.outline import Request
from conv_advisor.app.plans.parameters import batches_of, dims_of
from conv_advisor.app.plans.reading import read_outline
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import DType
from conv_advisor.models.planning.network import Network
from tests.onnx_models import Build


def network(body: bytes, batch: int = 1) -> Network:
    """What is read of a model in this process."""
    return network_of(onnx_reader.outline_of(body, Request(batch, {})), "tested", DType.FLOAT32)


@pytest.mark.parametrize("value", [inf, -inf, nan])
def test_numbers_without_an_end_are_read(value: float) -> None:
    """A mask adds minus infinity; a Clip of one side alone is often written with an infinite other one."""
    build = Build()
    build.weights.append(numpy_helper.from_array(np.float32(value), "mask"))
    masked = build.node("Add", build.conv("x", 8, 3), "mask")
    found = read_outline(build.bytes(build.node("Clip", masked, min=0.0, max=value)), batch=1)
    assert found.scalars["mask"] == pytest.approx(value, nan_ok=True)
    assert found.nodes[-1].numbers["max"] == pytest.approx((value,), nan_ok=True)
    assert len(network_of(found, "tested", DType.FLOAT32).convolutions) == 1


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"strides": [nan, 1.0]}, "strides is (nan, 1.0); allowed: 2 integers"),
        ({"strides": [inf, 1.0]}, "strides is (inf, 1.0); allowed: 2 integers"),
        ({"strides": [1.5, 1.0]}, "strides is (1.5, 1.0); allowed: 2 integers"),
        ({"group": "two"}, "group is 'two'; allowed: 1 integer"),
    ],
)
def test_attributes_that_are_no_integers_are_said(attributes: dict[str, object], said: str) -> None:
    build = Build()
    (operator,) = network(build.bytes(build.node("Conv", "x", build.weight(8, 3, 3, 3), **attributes))).operators
    assert operator.left_out == said


def test_parameters_that_are_inputs_are_not_given_the_batch() -> None:
    build = Build(1, 3, 32, 32)
    model = build.model(build.conv(build.conv("x", 8, 3, bias=True), 16, 8))
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT, tensor.dims))
    del model.graph.initializer[:]
    found = network(model.SerializeToString(), batch=4)
    assert [
        (convolution.problem.n, convolution.problem.k, convolution.problem.c) for convolution in found.convolutions
    ] == [(4, 8, 3), (4, 16, 8)]
    assert found.remarks == ("the model was written for a batch of 1, and its first dimension was changed",)


def test_a_weight_of_a_type_that_nobody_knows_is_no_matter() -> None:
    build = Build()
    model = build.model(build.conv("x", 8, 3))
    model.graph.initializer.append(TensorProto(name="odd", data_type=71, dims=[1], raw_data=bytes(4)))
    assert len(network(model.SerializeToString()).convolutions) == 1


@pytest.mark.parametrize("name", ["conv0", "w0", "Conv", "pads", "batch"])
def test_a_name_that_is_no_text_is_refused(name: str) -> None:
    build = Build()
    build.conv("x", 8, 3)
    body = build.bytes("conv0").replace(name.encode(), b"\xff" * len(name))
    with pytest.raises(InvalidInput, match="allowed: names in UTF-8"):
        read_outline(body, batch=1)


@pytest.mark.parametrize("size", [0, -5])
def test_a_size_that_is_none_is_said(size: int) -> None:
    build = Build(1, 3, size, 32)
    with pytest.raises(onnx_reader.Refused) as caught:
        network(build.bytes(build.conv("x", 8, 3)))
    assert caught.value.fault.value == f"dimension 2 of input 'x', of size {size}"


def test_a_process_that_is_limited_already_reads_within_its_limits() -> None:
    code = f"""
import resource
from {onnx_reader.__name__} import CPU_S, limit
less_s = CPU_S - 1
resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
resource.setrlimit(resource.RLIMIT_CPU, (less_s, less_s))
assert limit(0) == 2**30
assert resource.getrlimit(resource.RLIMIT_CPU) == (less_s, less_s)
"""
    subprocess.run([sys.executable, "-c", code], timeout=600, check=True)


@pytest.mark.parametrize("text", ["\u0661", "0000000001999999", "1,\u00b2", "+1", "1_0"])
def test_batches_and_sizes_are_plain_digits(text: str) -> None:
    with pytest.raises(InvalidInput, match="batches"):
        batches_of(text)
    with pytest.raises(InvalidInput, match="dims"):
        dims_of(f"height={text}")
