"""How Inductor calls our operators: a plain function on a y that it has allocated, past PyTorch's dispatcher.

An operator in Python costs the host several times what launching a kernel does: its arguments are turned into those of
C++ and back, and y is allocated behind Inductor's back. What is called here takes tensors that are dense in the plan's
layout, which Inductor sees to while it compiles, and runs on the device that it made the current one.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
from torch._inductor.ir import (
    NHWC_STRIDE_ORDER,
    ConcatKernel,
    ExternKernel,
    ExternKernelOut,
    FallbackKernel,
    FlexibleLayout,
    SliceView,
    StorageBox,
    TensorBox,
)
from torch._inductor.lowering import fallback_handler, lowerings, register_lowering
from torch._inductor.select_algorithm import extern_kernels
from torch._inductor.virtualized import V

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.torch.calls.layers import geometry_of_problem
from conv_advisor.torch.calls.loaded import (
    LOADED,
    layout_of_plan,
    memory_format_of_plan,
    plan_behind,
    problem_of_plan,
)
from conv_advisor.torch.calls.own import own_steps
from conv_advisor.torch.operators.cat_channels import cat_channels
from conv_advisor.torch.operators.conv2d import conv2d, forget, load
from conv_advisor.torch.operators.conv2d_ending import conv2d_ending
from conv_advisor.torch.operators.conv2d_prologue import behind_steps, conv2d_prologue

NAME: Final = "conv_advisor_conv2d_v1"
"""The name by which compiled graphs, which may be kept, call `convolve_into`."""
NAME_WITHIN: Final = "conv_advisor_conv2d_within_v1"
"""The same of `convolve_within`."""
NAME_BEHIND: Final = "conv_advisor_conv2d_prologue_v1"
"""The same of `convolve_behind`."""

DEVICES: Final = {"cuda"}
"""Types of devices on which it is called so; elsewhere the operators are called as any other."""


def convolve_into(x: Any, weight: Any, *ends: Any, plan: str, out: Any) -> None:
    """Write y.

    Parameters
    ----------
    x, weight : tensor
    *ends : tensor
        What the epilogue adds of bias and residual, in this order.
    plan : str
        As graphs name it.
    out : tensor
        Where y goes.
    """
    key = (plan, x.shape, x.get_device())
    try:
        run = LOADED[key]
    except KeyError:
        run = _load(key, x, weight, ends)
    if run is not None:
        try:
            if run.run_here(x, weight, out, *ends):
                return
        except Exception as error:  # whatever it was, PyTorch's own convolution gives the answer
            forget(key, error)
    problem = problem_of_plan(plan)
    rest: tuple[Any, ...] = (*geometry_of_problem(problem).arguments, problem.epilogue.activation.value, plan)
    out.copy_(own_steps(x, weight, *_bias_and_residual(problem, ends), *rest))


def convolve_within(x: Any, weight: Any, *ends: Any, plan: str, out: Any) -> None:
    """`convolve_into` where ``out`` may be some of the channels of a larger tensor, nhwc: copied only if it must be."""
    key = (plan, x.shape, x.get_device())
    run = LOADED[key] if key in LOADED else _load(key, x, weight, ends)
    if run is not None:
        try:
            if run.run_within(x, weight, out, *ends):
                return
        except Exception as error:  # whatever it was, PyTorch's own convolution gives the answer
            forget(key, error)
    y = torch.empty(out.shape, dtype=out.dtype, device=out.device, memory_format=memory_format_of_plan(plan))
    convolve_into(x, weight, *ends, plan=plan, out=y)
    out.copy_(y)


def convolve_behind(x: Any, prologue: Any, weight: Any, *rest: Any, plan: str, channels: int, out: Any) -> None:
    """Write y of max(x * scale + shift, 0).

    Parameters
    ----------
    x : tensor
        All that is convolved, or what it begins with in one larger tensor, nhwc, of so many ``channels``.
    prologue : tensor
        Scale and shift in float32, of shape (2,C).
    weight : tensor
    *rest : tensor
        Bias and residual, as in `convolve_into`; then what follows x in the larger tensor, in order.
    plan, channels, out
    """
    problem = problem_of_plan(plan)
    count = problem.epilogue.bias + problem.epilogue.residual
    ends, others = rest[:count], rest[count:]
    n, _, *plane = x.shape
    key = (plan_behind(plan), torch.Size((n, weight.shape[1], *plane)), x.get_device())
    run = LOADED[key] if key in LOADED else _load(key, _like_all(x, weight), weight, ends)
    if run is not None:
        try:
            if run.run_behind_prologue(x, weight, out, prologue, *ends, channels=channels):
                return
        except Exception as error:  # whatever it was, PyTorch's own convolution gives the answer
            forget(key, error)
    names: tuple[Any, ...] = (*geometry_of_problem(problem).arguments, problem.epilogue.activation.value, plan)
    out.copy_(behind_steps([x, *others], prologue, weight, *_bias_and_residual(problem, ends), *names))


def _like_all(x: Any, weight: Any) -> Any:
    """A tensor as x, but with all channels: what it holds means nothing."""
    return x.new_empty(()).expand(x.shape[0], weight.shape[1], *x.shape[2:])


@cache
def register() -> None:
    """Let Inductor call our operators so, in this process."""
    setattr(extern_kernels, NAME, convolve_into)
    setattr(extern_kernels, NAME_WITHIN, convolve_within)
    setattr(extern_kernels, NAME_BEHIND, convolve_behind)

    def of_convolution(x: Any, weight: Any, *rest: Any) -> Any:
        return _lowered(conv2d, (x, weight), (x, weight, *rest))

    def of_ending(x: Any, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
        return _lowered(conv2d_ending, (x, weight, bias, residual), (x, weight, bias, residual, *rest))

    register_lowering(conv2d, type_promotion_kind=None)(of_convolution)
    register_lowering(conv2d_ending, type_promotion_kind=None)(of_ending)
    register_lowering(cat_channels, type_promotion_kind=None)(_concatenated)
    register_lowering(conv2d_prologue, type_promotion_kind=None)(_behind)


def _lowered(operator: Any, tensors: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """Inductor's node for one call; that of any other operator where it writes C++ or a graph leaves the process."""
    node = V.graph.current_node
    if not _is_called_so(node):
        return fallback_handler(operator, add_to_fallback_set=False)(*arguments)
    y, plan = node.meta["val"], arguments[-1]
    layout = FallbackKernel.tensor_to_layout(y)
    is_within = _is_within(node)
    if is_within:  # it goes where the concatenation wants it
        layout = FlexibleLayout(layout.device, layout.dtype, layout.size, NHWC_STRIDE_ORDER)
    return TensorBox.create(
        ExternKernelOut(
            layout=layout,
            inputs=[_dense(tensor, layout_of_plan(plan)) for tensor in tensors if tensor is not None],
            kwargs={"plan": plan},
            python_kernel_name=f"extern_kernels.{NAME_WITHIN if is_within else NAME}",
        )
    )


def _is_called_so(node: Any) -> bool:
    """Whether Inductor calls a node's operator as here: where it writes Python that stays in this process."""
    y = node.meta.get("val")
    leaves_python = any(getattr(V.graph, name, False) for name in ("cpp_wrapper", "aot_mode", "fx_wrapper"))
    return y is not None and y.device.type in DEVICES and not leaves_python


def _is_within(node: Any) -> bool:
    """Whether a convolution writes into the concatenation that reads it."""
    for reader in node.users:
        if reader.target is cat_channels:
            tensors, in_place = reader.args
            return bool(in_place[tensors.index(node)])
    return False


def _behind(parts: Any, prologue: Any, weight: Any, bias: Any, residual: Any, *rest: Any) -> Any:
    """Inductor's node for a convolution behind a prologue: parts of x are placed where they will be concatenated."""
    node = V.graph.current_node
    if not _is_called_so(node):
        arguments = (parts, prologue, weight, bias, residual, *rest)
        return fallback_handler(conv2d_prologue, add_to_fallback_set=False)(*arguments)
    whole = _whole_that_begins_with(node.args[0])
    if whole is not None:
        x, channels = _whole_of(whole).place(parts), whole.meta["val"].shape[1]
    else:
        x = [_dense(parts[0] if len(parts) == 1 else lowerings[torch.ops.aten.cat.default](parts, 1), Layout.NHWC)]
        channels = x[0].get_size()[1]
    taken = [_dense(tensor, Layout.NHWC) for tensor in (prologue, weight, bias, residual) if tensor is not None]
    return TensorBox.create(
        ExternKernelOut(
            layout=FallbackKernel.tensor_to_layout(node.meta["val"]),
            inputs=[x[0], *taken, *x[1:]],
            kwargs={"plan": rest[-1], "channels": int(channels)},
            python_kernel_name=f"extern_kernels.{NAME_BEHIND}",
        )
    )


def _concatenated(tensors: Any, in_place: Any) -> Any:
    """Inductor's node for a concatenation in channels last; parts that may lie anywhere are placed in it."""
    node = V.graph.current_node
    if not _is_called_so(node):
        return lowerings[torch.ops.aten.cat.default](tensors, 1)
    whole = _whole_of(node)
    whole.place(tensors)
    return whole.end()


class _Whole:
    """A concatenation that its parts are placed in, the first of them perhaps before the others are made."""

    def __init__(self, layout: Any) -> None:
        self._joined = ConcatKernel(name=None, layout=layout, inputs=[])
        self._box, self._end = StorageBox(self._joined), 0

    def place(self, tensors: Any) -> list[Any]:
        """What the concatenation begins with, each part a view of it."""
        placed = self._joined.inputs
        for tensor in tensors[len(placed) :]:
            begin, self._end = self._end, self._end + tensor.get_size()[1]
            view = SliceView.create(self._box, 1, begin, self._end, clamp=False)
            placed.append(ConcatKernel.realize_into(tensor, view))
        return list(placed[: len(tensors)])

    def end(self) -> Any:
        """The concatenation, once all parts are placed."""
        joined = self._joined
        joined.name = V.graph.register_buffer(joined)
        joined.inputs = ConcatKernel.unwrap_storage(joined.inputs)
        V.graph.register_operation(joined)
        return TensorBox(self._box)


def _whole_of(node: Any) -> _Whole:
    """The concatenation that a node of the graph that is lowered now stands for."""
    wholes: dict[Any, _Whole] = V.graph.__dict__.setdefault("conv_advisor_wholes", {})
    if node not in wholes:
        wholes[node] = _Whole(FallbackKernel.tensor_to_layout(node.meta["val"]))
    return wholes[node]


def _whole_that_begins_with(parts: Any) -> Any:
    """The longest concatenation, as a node, that has these parts first; None where there is none, or they are one."""
    if parts[0].target is cat_channels:
        return None
    wholes = [reader for reader in parts[-1].users if reader.target is cat_channels]
    return max(
        (whole for whole in wholes if whole.args[0][: len(parts)] == parts),
        key=lambda each: len(each.args[0]),
        default=None,
    )


def _dense(tensor: Any, layout: Layout) -> Any:
    """A tensor of Inductor's without gaps, images and filters in this order."""
    sizes = tensor.get_size()
    if len(sizes) == 4 and layout is Layout.NHWC:
        strides = FlexibleLayout.stride_ordered(sizes, NHWC_STRIDE_ORDER)
    else:
        strides = FlexibleLayout.contiguous_strides(sizes)
    return ExternKernel.require_exact_strides(ExternKernel.realize_input(tensor), strides)


def _load(key: tuple[str, Any, int], x: Any, weight: Any, ends: tuple[Any, ...]) -> Any:
    problem = problem_of_plan(key[0])
    geometry = geometry_of_problem(problem).arguments
    bias_and_residual = _bias_and_residual(problem, ends) if ends else ()
    return load(key, x, weight, bias_and_residual, geometry, problem.epilogue.activation.value)


def _bias_and_residual(problem: ConvProblem, ends: tuple[Any, ...]) -> tuple[Any, Any]:
    remaining = list(ends)
    bias = remaining.pop(0) if problem.epilogue.bias else None
    return bias, remaining.pop(0) if problem.epilogue.residual else None
