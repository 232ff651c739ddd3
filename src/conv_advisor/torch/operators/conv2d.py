"""The one operator that stands for an advised convolution in a graph: ``torch.ops.conv_advisor.conv2d_v1``.

Its name bears a version, since graphs that PyTorch compiled and kept outlive this code: what it computes, and the
strides of what it returns, may change under another name alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.torch.calls.layers import sides_of
from conv_advisor.torch.calls.loaded import LOADED, Run, memory_format_of_plan
from conv_advisor.torch.calls.own import own_convolution, pad
from conv_advisor.torch.log import warn_of_failure

QUALIFIED: Final = "conv_advisor::conv2d_v1"


_SLOTS: Final = 4096
"""Words of a frame of Python that is larger than what is left in any chunk of its stack."""


def below_autograd(call: Callable[..., Any]) -> Callable[..., Any]:
    """The same callable, in which PyTorch does not ask how the operators are differentiated.

    For what needs no gradients: asking costs more than half of what an operator costs the host.

    Notes
    -----
    CPython keeps frames in chunks of 16 KB. A call that crosses the end of one maps memory, and unmaps it when it
    returns: where the loop over a graph's layers happens to stand there, each layer does, which takes the host about
    as long as launching it. So this frame asks for more than is left in any chunk, and gets a larger one.
    """

    def without_autograd(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return call(*arguments)

    without_autograd.__code__ = without_autograd.__code__.replace(co_stacksize=_SLOTS)
    return without_autograd


def run_advised(
    plan: str, x: Any, weight: Any, ends: tuple[Any, ...], geometry: tuple[Any, ...], activation: str = "none"
) -> Any:
    """y by the variant that is loaded for a plan; None where PyTorch's own convolution is to answer.

    Parameters
    ----------
    plan : str
    x, weight : tensor
    ends : tuple of tensor or None
        Bias and residual where the epilogue adds one of them, else nothing.
    geometry : tuple
        Stride, padding, dilation and groups.
    activation : str
    """
    key = (plan, x.shape, x.get_device())
    try:
        run = LOADED[key]
    except KeyError:
        run = load(key, x, weight, ends, geometry, activation)
    if run is None:
        return None
    memory_format = memory_format_of_plan(plan)
    tensors = [_dense(tensor, memory_format) for tensor in (x, weight, *ends)]
    try:
        return run(*tensors)
    except Exception as error:  # whatever it was, PyTorch's own convolution gives the answer
        forget(key, error)
    return None


def forget(key: tuple[str, Any, int], error: Exception) -> None:
    """Leave what is loaded by this key, which failed, to PyTorch's own convolution from now on."""
    LOADED[key] = None
    warn_of_failure(key[0], error)


def _dense(tensor: Any, memory_format: Any) -> Any:
    """A tensor without gaps, images and filters in this order; None stays None."""
    if tensor is None or tensor.dim() == 1:
        return tensor if tensor is None else tensor.contiguous()
    return tensor.contiguous(memory_format=memory_format)


def load(
    key: tuple[str, Any, int],
    x: Any,
    weight: Any,
    ends: tuple[Any, ...],
    geometry: tuple[Any, ...],
    activation: str,
) -> Run | None:
    """What runs a plan on a shape that it meets for the first time; None where no choice is kept for that shape."""
    if torch.cuda.is_current_stream_capturing():
        return None
    from conv_advisor.torch.choosing.gpu import load_kept

    bias, residual = ends or (None, None)
    epilogue = Epilogue(bias is not None, residual is not None, Activation(activation))
    run = LOADED[key] = load_kept(key[0], x, weight, geometry, epilogue)
    return run


def _on_cuda(x: Any, weight: Any, *rest: Any) -> Any:
    *geometry, plan = rest
    y = run_advised(plan, x, weight, (), tuple(geometry))
    return own_convolution(x, weight, *rest) if y is None else y


def fake(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, plan: str) -> Any:
    """A tensor of y's shape, precision and strides, and nothing in it."""
    taps, sides = weight.shape[2:], sides_of(padding)
    plane = [
        (size + begin + end - step * (count - 1) - 1) // jump + 1
        for size, begin, end, step, count, jump in zip(
            x.shape[2:], sides[:2], sides[2:], dilation, taps, stride, strict=True
        )
    ]
    shape = (x.shape[0], weight.shape[0], *plane)
    memory_format = memory_format_of_plan(plan)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=memory_format)


def _keep_operands(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, *ctx.geometry, _ = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    stride, padding, dilation, groups = ctx.geometry
    needs_grad = [*ctx.needs_input_grad[:2], False]
    padded, even = pad(x, padding)
    grad_x, grad_weight, _ = torch.ops.aten.convolution_backward.default(
        grad, padded, weight, None, stride, even, dilation, False, [0, 0], groups, needs_grad
    )
    if padded is not x and grad_x is not None:
        top, left, *_ = padding
        grad_x = grad_x[:, :, top : top + x.shape[2], left : left + x.shape[3]]
    return grad_x, grad_weight, None, None, None, None, None


_library: Final = torch.library.Library("conv_advisor", "DEF")
_library.define(
    "conv2d_v1(Tensor x, Tensor weight, int[] stride, int[] padding, int[] dilation, int groups, str plan) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides),
)
_library.impl("conv2d_v1", _on_cuda, "CUDA")
_library.impl("conv2d_v1", own_convolution, "CPU")
torch.library.register_fake(QUALIFIED, fake, lib=_library)
torch.library.register_autograd(QUALIFIED, _backward, setup_context=_keep_operands, lib=_library)
conv2d: Final = torch.ops.conv_advisor.conv2d_v1.default
