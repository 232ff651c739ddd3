"""Orders from requests: tensors and parameters are read to what shall run."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from conv_advisor.app.convolve.convolution import ADVISED, Order
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.body import Bytes, Hold, parse_strings, parse_values
from conv_advisor.app.wire.layers import problem_from
from conv_advisor.app.wire.npy import read_npy
from conv_advisor.app.wire.open_inference import Inference
from conv_advisor.app.wire.safetensors import NEEDED, OPTIONAL, from_lists, read_safetensors
from conv_advisor.app.wire.schemas import ConvolutionParameters, ConvolutionRequest
from conv_advisor.data.errors import InvalidInput, InvalidProblem, InvalidTensor
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.bench import BenchOptions
from conv_advisor.kernels.reference import HOST_DTYPE

MAX_JSON_ELEMENTS: Final = 2**20
"""Most elements of a y in a JSON answer; a larger one is sent as safetensors."""

LISTS_COST: Final = 8
"""Memory of Python's lists of numbers per byte of text, such as "1.5,", or of float32: 32 bytes a number."""

_IGNORED: Final = ("format",)
"""Keys that libraries write into metadata on their own."""

_AXES: Final = {Layout.NCHW: (0, 1, 2, 3), Layout.NHWC: (0, 3, 1, 2)}
"""Positions of n, c, h, w and of k, c / groups, r, s in memory order."""


def order_from_safetensors(body: Bytes, settings: Settings) -> Order:
    """The order of a safetensors body: tensors x and weight, and parameters as its metadata.

    Raises
    ------
    InvalidInput, RequestValidationError
    """
    tensors, metadata = read_safetensors(body, NEEDED, OPTIONAL)
    strings = {name: value for name, value in metadata.items() if name not in _IGNORED}
    return _order(parse_strings(ConvolutionParameters, strings), tensors, settings)


def order_from_json(request: ConvolutionRequest, settings: Settings) -> Order:
    """The order of a JSON body.

    Raises
    ------
    InvalidInput
    """
    if (request.x is None) != (request.weight is None):
        missing = "x" if request.x is None else "weight"
        raise InvalidTensor(missing, None, "x and weight together; or neither, to measure on random tensors")
    if request.x is None:
        return _order(request, None, settings)
    dtype = HOST_DTYPE[_member(request.dtype)]
    values = {name: getattr(request, name) for name in (*NEEDED, *OPTIONAL)}
    arrays = {name: value for name, value in values.items() if name in NEEDED or value not in (None, False)}
    tensors = {name: from_lists(name, value, dtype) for name, value in arrays.items()}
    return _order(request.model_copy(update=dict.fromkeys(OPTIONAL)), tensors, settings)


def order_from_npy(body: Bytes, query: Mapping[str, Any], settings: Settings) -> Order:
    """The order of x and weight as .npy, one after the other, with the parameters of the URL.

    The parameters also say which of bias and residual follow.

    Raises
    ------
    InvalidInput, RequestValidationError
    """
    parameters = parse_values(ConvolutionParameters, query, "query")
    names = (*NEEDED, *(name for name in OPTIONAL if getattr(parameters, name)))
    return _order(parameters, read_npy(body, names), settings)


def order_from_inference(inference: Inference, settings: Settings) -> Order:
    """The order of an inference request, with the request's parameters.

    Raises
    ------
    InvalidInput, RequestValidationError
    """
    parameters = parse_values(ConvolutionParameters, inference.parameters, "parameters")
    return _order(parameters, inference.tensors, settings)


def hold_answer(order: Order, settings: Settings, hold: Hold, *, is_json: bool) -> None:
    """Refuse a y that is too large to send; else reserve its memory, because y may far exceed the request body.

    Raises
    ------
    InvalidProblem, QueueFull
    """
    problem = order.problem
    if order.tensors is None:
        return
    if problem.y_bytes > settings.max_body_bytes:
        raise InvalidProblem("y", problem.y_shape, f"at most {settings.max_body_bytes} bytes in one answer")
    if is_json and problem.y_bytes > MAX_JSON_ELEMENTS * problem.dtype.itemsize_bytes:
        allowed = f"at most {MAX_JSON_ELEMENTS} elements in JSON; Accept: application/vnd.safetensors has no such limit"
        raise InvalidProblem("y", problem.y_shape, allowed)
    hold.more(min(problem.y_bytes * LISTS_COST, settings.max_body_bytes) if is_json else problem.y_bytes)


def hold_lists(count: int, settings: Settings, hold: Hold) -> None:
    """Reserve the memory that `count` bytes of JSON take as lists of numbers.

    Raises
    ------
    QueueFull
    """
    hold.more(min(count * (LISTS_COST - 1), settings.max_body_bytes))


def _order(parameters: ConvolutionParameters, tensors: dict[str, np.ndarray] | None, settings: Settings) -> Order:
    if (parameters.top or 1) > 1 and parameters.variant != ADVISED:
        raise InvalidInput(
            "top", parameters.top, f"1 beside the variant {parameters.variant!r}; more with {ADVISED!r} alone"
        )
    if parameters.measure and (parameters.top is not None or parameters.variant != ADVISED):
        other = f"the variant {parameters.variant!r}" + (f" and top {parameters.top}" if parameters.top else "")
        allowed = f"not together with {other}; it decides itself how many"
        raise InvalidInput("measure", parameters.measure, allowed)
    fields = parameters.given()
    problem = problem_from(fields) if tensors is None else _problem_of(tensors, fields)
    limit = settings.workspace_limit_bytes
    if parameters.max_workspace_bytes is not None:
        limit = min(limit, parameters.max_workspace_bytes)
    return Order(
        problem=problem,
        tensors=tensors,
        variant=parameters.variant,
        top=parameters.top,
        measure=parameters.measure,
        options=BenchOptions(workspace_limit_bytes=limit, seed=parameters.seed),
        is_deterministic=parameters.deterministic,
        run_id=f"http-{secrets.token_hex(6)}",
    )


def _problem_of(tensors: dict[str, np.ndarray], fields: dict[str, Any]) -> ConvProblem:
    """The problem of these tensors; named parameters must agree with them."""
    x, weight = tensors["x"], tensors["weight"]
    for name, tensor in tensors.items():
        if tensor.dtype != x.dtype:
            raise InvalidTensor(f"{name}.dtype", tensor.dtype.name, f"{x.dtype.name}, as x has")
    fields = {"dtype": _stored_as(x)} | fields
    if "layer" not in fields:
        axes = _AXES.get(fields.get("layout", Layout.NCHW), _AXES[Layout.NCHW])
        n, c, h, w = (x.shape[axis] for axis in axes)
        k, _, r, s = (weight.shape[axis] for axis in axes)
        fields = {"n": n, "c": c, "h": h, "w": w, "k": k, "r": r, "s": s} | fields
    problem = _ending(problem_from(fields), tensors, fields)
    if HOST_DTYPE[problem.dtype] != x.dtype:
        meant = " or ".join(dtype for dtype, host_dtype in HOST_DTYPE.items() if host_dtype == x.dtype)
        allowed = f"{HOST_DTYPE[problem.dtype].name}, with dtype={problem.dtype}; for these tensors dtype={meant}"
        raise InvalidTensor("x.dtype", x.dtype.name, allowed)
    for name, shape in problem.shapes.items():
        if tensors[name].shape != shape:
            raise InvalidTensor(f"{name}.shape", tensors[name].shape, f"{shape}, as the parameters say")
    return problem


def _ending(problem: ConvProblem, tensors: dict[str, np.ndarray], fields: dict[str, Any]) -> ConvProblem:
    """The problem with an epilogue that adds these tensors; named parameters must not contradict it."""
    for name in OPTIONAL:
        is_named = getattr(problem.epilogue, name)
        if is_named and name not in tensors:
            raise InvalidTensor(name, None, f"a tensor of shape {problem.shapes[name]}, which the parameters add")
        if name in tensors and not is_named:
            if name in fields:
                raise InvalidTensor(name, tensors[name].shape, "no tensor, which the parameters do not add")
            field: dict[str, Any] = {name: True}
            problem = replace(problem, epilogue=replace(problem.epilogue, **field))
    return problem


def _stored_as(x: np.ndarray) -> DType:
    return next(dtype for dtype, host_dtype in HOST_DTYPE.items() if host_dtype == x.dtype)


def _member(dtype: str | None) -> DType:
    try:
        return DType(dtype or DType.FLOAT32)
    except ValueError:
        raise InvalidProblem("dtype", dtype, ", ".join(DType)) from None
