"""The Open Inference Protocol: requests that tell the truth, and requests that do not."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conv_advisor.app.wire.open_inference import DATATYPES, Inference, read_inference, write_inference
from conv_advisor.data.errors import InvalidTensor

X = {"name": "x", "datatype": "FP32", "shape": [1, 1, 2, 2], "parameters": {"binary_data_size": 16}}
WEIGHT = {"name": "weight", "datatype": "FP32", "shape": [1, 1, 1, 1], "parameters": {"binary_data_size": 4}}
DATA = np.arange(5, dtype=np.float32).tobytes()


def read(asked: Any, data: bytes = DATA) -> Inference:
    text = asked if isinstance(asked, bytes) else json.dumps(asked).encode()
    return read_inference(np.frombuffer(text + data, np.uint8), len(text), ("x", "weight"), "y")


def asked(**changes: Any) -> dict[str, Any]:
    return {"inputs": [X, WEIGHT]} | changes


def test_bytes_are_taken_in_the_order_of_the_inputs_without_a_copy() -> None:
    text = json.dumps({"inputs": [WEIGHT, X]}).encode()
    body = np.frombuffer(text + DATA, np.uint8)
    found = read_inference(body, len(text), ("x", "weight"), "y")
    assert found.tensors["weight"].ravel().tolist() == [0]
    assert found.tensors["x"].tolist() == [[[[1, 2], [3, 4]]]]
    assert np.shares_memory(found.tensors["x"], body)


@pytest.mark.parametrize("data", [[0, 1, 2, 3], [[[[0, 1], [2, 3]]]]])
def test_numbers_may_be_flat_or_nested_and_beside_bytes(data: Any) -> None:
    x = X | {"data": data, "parameters": {}}
    found = read({"inputs": [x, WEIGHT]}, DATA[4:8])
    assert found.tensors["x"].tolist() == [[[[0, 1], [2, 3]]]]
    assert found.tensors["weight"].tolist() == [[[[1]]]]


@pytest.mark.parametrize(("datatype", "dtype"), DATATYPES.items())
def test_every_type_goes_both_ways(datatype: str, dtype: np.dtype) -> None:
    y = np.array([1.5, -2, 0.25, 3]).reshape(1, 1, 2, 2).astype(dtype)
    text, data = write_inference({"model_name": "conv"}, "y", y, is_binary=True)
    head = json.loads(text)
    size = {"binary_data_size": y.nbytes}
    output = {"name": "y", "datatype": datatype, "shape": [1, 1, 2, 2], "parameters": size}
    assert head == {"model_name": "conv", "outputs": [output]}
    inputs = [{**head["outputs"][0], "name": name} for name in ("x", "weight")]
    found = read({"inputs": inputs}, bytes(data) * 2)
    np.testing.assert_array_equal(found.tensors["x"], y)
    assert found.tensors["weight"].dtype == dtype


def test_an_answer_in_numbers_is_json_alone() -> None:
    y = np.array([1.5, np.nan, np.inf, 3], ml_dtypes.bfloat16).reshape(1, 1, 2, 2)
    text, data = write_inference({}, "y", y, is_binary=False)
    assert len(data) == 0
    (output,) = json.loads(text)["outputs"]
    assert output == {"name": "y", "datatype": "BF16", "shape": [1, 1, 2, 2], "data": [1.5, None, None, 3]}


def test_who_asks_decides_whether_y_is_bytes() -> None:
    assert not read(asked()).is_binary
    assert read(asked(parameters={"binary_data_output": True})).is_binary
    assert read(asked(outputs=[{"name": "y", "parameters": {"binary_data": True}}])).is_binary
    mixed = asked(
        outputs=[{"name": "y", "parameters": {"binary_data": False}}], parameters={"binary_data_output": True}
    )
    assert not read(mixed).is_binary


def test_the_requests_own_parameters_and_id_are_kept() -> None:
    found = read(asked(id="7", parameters={"pad": 1, "variant": "all", "binary_data_output": True}))
    assert (found.id, found.parameters) == ("7", {"pad": 1, "variant": "all"})


def test_parameters_of_the_protocol_are_taken_and_say_nothing_of_the_convolution() -> None:
    protocol = {"priority": 1, "timeout": 5000, "sequence_id": 7, "sequence_start": True, "sequence_end": False}
    assert read(asked(parameters={"pad": 1} | protocol)).parameters == {"pad": 1}


LIES: dict[str, tuple[Any, str]] = {
    "no_json": (b"{", "body"),
    "no_text": (b"\xff\xfe", "body"),
    "a_list": ([], "body"),
    "deep": (b'{"inputs":' + b"[" * 100_000, "body"),
    "no_inputs": ({}, "body"),
    "one_input": ({"inputs": [X]}, "inputs"),
    "another_input": ({"inputs": [X, WEIGHT | {"name": "bias"}]}, "inputs"),
    "x_twice": ({"inputs": [X, WEIGHT, X]}, "inputs"),
    "another_output": (asked(outputs=[{"name": "z"}]), "outputs"),
    "two_outputs": (asked(outputs=[{"name": "y"}, {"name": "y"}]), "body"),
    "another_type": ({"inputs": [X | {"datatype": "FP64"}, WEIGHT]}, "x.datatype"),
    "strings": ({"inputs": [X | {"datatype": "BYTES"}, WEIGHT]}, "x.datatype"),
    "negative": ({"inputs": [X | {"shape": [1, 1, -2, -2]}, WEIGHT]}, "body"),
    "three_sizes": ({"inputs": [X | {"shape": [1, 2, 2]}, WEIGHT]}, "x.shape"),
    "a_size_of_too_many_bits": ({"inputs": [X | {"shape": [1, 1, 2, 2**70]}, WEIGHT]}, "body"),
    "more_than_there_is": (
        {"inputs": [X | {"shape": [2**20, 2**20, 1, 1], "parameters": {"binary_data_size": 2**42}}, WEIGHT]},
        "x.binary_data_size",
    ),
    "a_size_that_is_not_the_shapes": ({"inputs": [X | {"parameters": {"binary_data_size": 12}}, WEIGHT]}, "x.binary"),
    "a_size_that_is_none": ({"inputs": [X | {"parameters": {"binary_data_size": "16"}}, WEIGHT]}, "x.binary"),
    "no_data": ({"inputs": [X | {"parameters": {}}, WEIGHT]}, "x"),
    "no_data_of_one_number": ({"inputs": [X, WEIGHT | {"parameters": {}}]}, "weight.data"),
    "null_for_data": ({"inputs": [X, WEIGHT | {"parameters": {}, "data": None}]}, "body"),
    "a_number_for_data": ({"inputs": [X, WEIGHT | {"parameters": {}, "data": 1}]}, "body"),
    "data_beside_bytes": ({"inputs": [X, WEIGHT | {"data": [1]}]}, "weight.data"),
    "numbers_as_words": ({"inputs": [X | {"parameters": {}, "data": ["1", "1_0", "2", "3"]}, WEIGHT]}, "x"),
    "truth_values": ({"inputs": [X | {"parameters": {}, "data": [1, 2, 3, True]}, WEIGHT]}, "x"),
    "none_of_one_size_and_huge_others": (
        {"inputs": [X | {"shape": [0, *[2**31 - 1] * 3], "parameters": {"binary_data_size": 0}}, WEIGHT]},
        "x.shape",
    ),
    "too_few_numbers": ({"inputs": [X | {"parameters": {}, "data": [1, 2, 3]}, WEIGHT]}, "x.data"),
    "uneven_lists": ({"inputs": [X | {"parameters": {}, "data": [[1, 2], [3]]}, WEIGHT]}, "x"),
    "words": ({"inputs": [X | {"parameters": {}, "data": ["one"] * 4}, WEIGHT]}, "x"),
}


@pytest.mark.parametrize(("request_", "field"), LIES.values(), ids=list(LIES))
def test_what_is_false_is_named(request_: Any, field: str) -> None:
    with pytest.raises(InvalidTensor) as caught:
        read(request_)
    assert field in caught.value.field


def test_bytes_that_belong_to_no_tensor_are_refused() -> None:
    with pytest.raises(InvalidTensor, match="after the last tensor"):
        read(asked(), DATA + b"\0")


@given(st.data())
def test_a_changed_byte_never_brings_it_down(data: Any) -> None:
    text = bytearray(json.dumps(asked()).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(bytes(text))
    except InvalidTensor:
        return
    assert {tensor.ndim for tensor in found.tensors.values()} == {4}
