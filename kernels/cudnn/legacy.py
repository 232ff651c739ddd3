"""The eight forward algorithms of cuDNN's legacy API, through ctypes."""

from __future__ import annotations

import ctypes
import weakref
from ctypes import byref, c_float, c_int, c_size_t, c_void_p
from typing import Any, Final

from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import NotSupported, WorkspaceExceeded
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.addresses import current_stream
from conv_advisor.kernels.cuda.appended.launch import append
from conv_advisor.kernels.cudnn.library import ForwardPerformance, call, handle, handle_on
from conv_advisor.kernels.cudnn.variants import LEGACY_ALGORITHMS, algorithm_of, legacy_id
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Ending, Launch, Variant

_DATA_FLOAT: Final = 0
_DATA_TYPES: Final = {DType.FLOAT32: _DATA_FLOAT, DType.TF32: _DATA_FLOAT, DType.FLOAT16: 2, DType.BFLOAT16: 9}
_FORMATS: Final = {Layout.NCHW: 0, Layout.NHWC: 1}
_CROSS_CORRELATION: Final = 1
_DEFAULT_MATH, _TENSOR_OP_MATH, _FMA_MATH = 0, 1, 3
_NOT_PROPAGATE_NAN: Final = 0
_ACTIVATIONS: Final = {Activation.RELU: 1, Activation.NONE: 5}
_ONE: Final = c_float(1.0)
_ZERO: Final = c_float(0.0)


class _Descriptors:
    """The four descriptors of one problem, destroyed with this object."""

    def __init__(self, problem: ConvProblem, is_tensor_core: bool) -> None:
        self.x = _create(self, "Tensor")
        self.weight = _create(self, "Filter")
        self.convolution = _create(self, "Convolution")
        self.y = _create(self, "Tensor")
        kind, layout = _DATA_TYPES[problem.dtype], _FORMATS[problem.layout]
        # Sizes are in the order n, c, h, w whatever memory order the format names.
        call("cudnnSetTensor4dDescriptor", self.x, layout, kind, problem.n, problem.c, problem.h, problem.w)
        call("cudnnSetTensor4dDescriptor", self.y, layout, kind, problem.n, problem.k, problem.p, problem.q)
        channels = problem.c // problem.groups
        call("cudnnSetFilter4dDescriptor", self.weight, kind, layout, problem.k, channels, problem.r, problem.s)
        self._set_convolution(problem)
        call("cudnnSetConvolutionMathType", self.convolution, _math_type(problem.dtype, is_tensor_core))

    def workspace_bytes(self, algorithm: int) -> int:
        """Scratch memory of one algorithm; raises NotSupported where it does not take the problem."""
        size = c_size_t()
        call(
            "cudnnGetConvolutionForwardWorkspaceSize",
            handle(),
            self.x,
            self.weight,
            self.convolution,
            self.y,
            algorithm,
            byref(size),
        )
        return size.value

    def forward(self, algorithm: int, x: Any, weight: Any, y: Any, workspace: Scratch) -> None:
        """Enqueue the convolution on the current stream."""
        call(
            "cudnnConvolutionForward",
            handle_on(current_stream()),
            byref(_ONE),
            self.x,
            x.data.ptr,
            self.weight,
            weight.data.ptr,
            self.convolution,
            algorithm,
            workspace.ptr,
            workspace.nbytes,
            byref(_ZERO),
            self.y,
            y.data.ptr,
        )

    def _set_convolution(self, problem: ConvProblem) -> None:
        call(
            "cudnnSetConvolution2dDescriptor",
            self.convolution,
            problem.pad_h,
            problem.pad_w,
            problem.stride_h,
            problem.stride_w,
            problem.dilation_h,
            problem.dilation_w,
            _CROSS_CORRELATION,
            _DATA_FLOAT,
        )
        call("cudnnSetConvolutionGroupCount", self.convolution, problem.groups)


class _FusedCall:
    """The convolution with its bias, its residual if it has one, and its activation, in one call."""

    def __init__(self, descriptors: _Descriptors, problem: ConvProblem) -> None:
        self._plain = descriptors
        self._bias = _create(self, "Tensor")
        self._activation = _create(self, "Activation")
        sizes = (1, problem.k, 1, 1)
        call("cudnnSetTensor4dDescriptor", self._bias, _FORMATS[Layout.NCHW], _DATA_TYPES[problem.dtype], *sizes)
        # The call takes no activation that propagates NaN.
        mode = _ACTIVATIONS[problem.epilogue.activation]
        call("cudnnSetActivationDescriptor", self._activation, mode, _NOT_PROPAGATE_NAN, 0.0)

    def forward(
        self, algorithm: int, x: Any, weight: Any, y: Any, bias: Any, residual: Any | None, workspace: Scratch
    ) -> None:
        """Enqueue the call on the current stream."""
        plain = self._plain
        # Without a residual, y is passed in its place with the factor 0: the library then does not read it.
        factor, added = (_ZERO, y) if residual is None else (_ONE, residual)
        call(
            "cudnnConvolutionBiasActivationForward",
            handle_on(current_stream()),
            *(byref(_ONE), plain.x, x.data.ptr, plain.weight, weight.data.ptr, plain.convolution),
            *(algorithm, workspace.ptr, workspace.nbytes),
            *(byref(factor), plain.y, added.data.ptr),
            *(self._bias, bias.data.ptr, self._activation, plain.y, y.data.ptr),
        )


def _create(owner: object, kind: str) -> c_void_p:
    """A descriptor, destroyed with its owner."""
    descriptor = c_void_p()
    call(f"cudnnCreate{kind}Descriptor", byref(descriptor))
    weakref.finalize(owner, call, f"cudnnDestroy{kind}Descriptor", descriptor)
    return descriptor


def prepare(variant: Variant, problem: ConvProblem, workspace_limit_bytes: int) -> Launch:
    """Describe the problem to the library, query the workspace and allocate it.

    The epilogue is part of the library's call, or a kernel of ours after it, as `Variant.ending_of` says.

    Parameters
    ----------
    variant : Variant
        One of the forward algorithms.
    problem : ConvProblem
    workspace_limit_bytes : int

    Returns
    -------
    launch : Launch
        Its operands must be aligned to 16 bytes.

    Raises
    ------
    NotSupported, WorkspaceExceeded, OutOfMemory, LaunchFailed
    """
    algorithm, is_tensor_core = algorithm_of(variant.id)
    descriptors = _Descriptors(problem, is_tensor_core)
    needed_bytes = descriptors.workspace_bytes(algorithm)
    if needed_bytes > workspace_limit_bytes:
        raise WorkspaceExceeded(needed_bytes, workspace_limit_bytes)
    workspace = Scratch(needed_bytes)

    if variant.ending_of(problem.epilogue) is Ending.LIBRARY:
        fused = _FusedCall(descriptors, problem)

        def run_fused(x: Any, weight: Any, y: Any, bias: Any, residual: Any = None) -> None:
            fused.forward(algorithm, x, weight, y, bias, residual, workspace)

        return Launch(run_fused, needed_bytes, scratch=(workspace,), by_address=True)

    def run(x: Any, weight: Any, y: Any) -> None:
        descriptors.forward(algorithm, x, weight, y, workspace)

    return append(Launch(run, needed_bytes, scratch=(workspace,), by_address=True), problem)


def heuristic_pick(problem: ConvProblem, workspace_limit_bytes: int) -> str | None:
    """The variant that cudnnGetConvolutionForwardAlgorithm_v7 ranks first among those that run within the limit.

    Parameters
    ----------
    problem : ConvProblem
    workspace_limit_bytes : int

    Returns
    -------
    variant_id : str or None
        None where it offers nothing.
    """
    is_tensor_core_allowed = problem.dtype is not DType.FLOAT32
    try:
        entries = _ranking(_Descriptors(problem, is_tensor_core_allowed))
    except NotSupported:
        return None
    for entry in entries:
        if entry.status == 0 and entry.memory <= workspace_limit_bytes:
            is_tensor_core = is_tensor_core_allowed and entry.math_type != _FMA_MATH
            return legacy_id(entry.algorithm, is_tensor_core)
    return None


def _ranking(descriptors: _Descriptors) -> list[ForwardPerformance]:
    # Each algorithm may be ranked twice, once per math type.
    most = 2 * len(LEGACY_ALGORITHMS)
    entries = (ForwardPerformance * most)()
    returned = c_int()
    call(
        "cudnnGetConvolutionForwardAlgorithm_v7",
        handle(),
        descriptors.x,
        descriptors.weight,
        descriptors.convolution,
        descriptors.y,
        most,
        byref(returned),
        ctypes.cast(entries, ctypes.POINTER(ForwardPerformance)),
    )
    return list(entries[: returned.value])


def _math_type(dtype: DType, is_tensor_core: bool) -> int:
    if not is_tensor_core:
        return _FMA_MATH
    return _DEFAULT_MATH if dtype is DType.TF32 else _TENSOR_OP_MATH
