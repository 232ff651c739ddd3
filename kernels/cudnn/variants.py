"""The cuDNN variants: where each may apply; pure Python.

A rule here is a limit that cuDNN documents or reports. Problems that cuDNN refuses for other reasons are attempted: the
attempt then ends as not supported, with cuDNN's own status.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cudnn.epilogue import has_nodes, in_fused_call
from conv_advisor.kernels.variant import (
    Algorithm,
    Backend,
    Ending,
    Rule,
    Variant,
    all_of,
    dilation_1,
    dtype_in,
    filter_is,
    layout_is,
    of_device,
    padding_of,
    stride_1,
    unknown_workspace,
)

MOST_FFT_SIZE: Final = 256
"""Rows and columns of the padded input that ``FFT`` takes."""
MOST_FFT_TILING_FILTER: Final = 32
"""Filter height and width that ``FFT_TILING`` takes."""
MOST_FFT_TILING_LINE: Final = 256
"""Length of a filter of one row or one column that ``FFT_TILING`` takes."""

ENGINE_PREFIX: Final = "cudnn.graph.eng"

FUSED_PRODUCTS: Final = 39
"""The engine that multiplies matrices and computes the epilogue: for 1x1 filters, and only with an epilogue."""

TENSOR_CORE_ENGINES: Final = (22, 23, 27, 35, 38, FUSED_PRODUCTS, 41, 45, 46, 47, 48, 58, 62, 67, 71)
"""Engines whose numerical notes say that they use tensor cores, and do not say that they are non-deterministic."""
PLAIN_ENGINES: Final = (0, 1, 3, 5, 6, 28, 57, 70)
"""Engines whose numerical notes mention neither tensor cores nor non-determinism."""
ENGINES: Final = tuple(sorted(TENSOR_CORE_ENGINES + PLAIN_ENGINES))
"""Engines that cuDNN 9.19 offers for forward convolutions on Hopper.

Engine 63, offered for some strided layers, is left out: its notes say that it accumulates in less than float32.
"""

_LEGACY_SOURCE: Final = "NVIDIA cuDNN API reference, cudnnConvolutionForward"
_GRAPH_SOURCE: Final = "NVIDIA cuDNN graph API, heuristics A, B and FALLBACK"

_NOT_FLOAT32: Final = dtype_in(DType.TF32, DType.FLOAT16, DType.BFLOAT16)


def _padded_input_within_fft(problem: ConvProblem, _device: Device) -> str | None:
    rows, columns = problem.h + 2 * problem.pad_h, problem.w + 2 * problem.pad_w
    if max(rows, columns) <= MOST_FFT_SIZE:
        return None
    return f"padded input is {rows}x{columns}, above {MOST_FFT_SIZE}x{MOST_FFT_SIZE}"


def _filter_within_fft_tiling(problem: ConvProblem, _device: Device) -> str | None:
    is_line = min(problem.r, problem.s) == 1
    most = MOST_FFT_TILING_LINE if is_line else MOST_FFT_TILING_FILTER
    if max(problem.r, problem.s) <= most:
        return None
    return f"filter is {problem.r}x{problem.s}, longer than {most}"


def _filter_above_padding(problem: ConvProblem, _device: Device) -> str | None:
    if problem.r > problem.pad_h and problem.s > problem.pad_w:
        return None
    return f"padding is {problem.pad_h}x{problem.pad_w}, not below the filter, {problem.r}x{problem.s}"


def _accurate_winograd(problem: ConvProblem, _device: Device) -> str | None:
    # cuDNN would run 5x5; measured on an H200 with cuDNN 9.19, its result errs by 1.7e-3 to 6.3e-3 in float32, by up to
    # 9.8e-3 in float16 and by up to 1.8e-2 in bfloat16.
    return "filter is 5x5, where its result is not accurate: it errs by up to 2e-2" if problem.r == 5 else None


@of_device
def _is_implemented(_problem: ConvProblem, _device: Device) -> str:
    return "cuDNN declares it and implements it for no device"


@of_device
def _is_not_hopper(_problem: ConvProblem, device: Device) -> str | None:
    # On an H200 cuDNN 9.19 refused all 6,342 problems that the other rules allow, each with NOT_SUPPORTED.
    if device.capability == "9.0":
        return "compute capability is 9.0, where cuDNN refuses it for every layer"
    return None


def _even_padding(problem: ConvProblem, _device: Device) -> str | None:
    if not problem.has_uneven_padding:
        return None
    return f"padding is {padding_of(problem)}, and the legacy API has one number for opposite sides"


_UNIT_STEPS_NCHW: Final = all_of(layout_is(Layout.NCHW), stride_1, dilation_1)


def _something_follows(problem: ConvProblem, _device: Device) -> str | None:
    return None if problem.epilogue else "nothing follows the convolution, and cuDNN offers it for no convolution alone"


_ENGINE_RULES: Final[dict[int, Rule]] = {
    6: _accurate_winograd,
    FUSED_PRODUCTS: all_of(_NOT_FLOAT32, _something_follows, filter_is((1, 1)), stride_1),
}
"""Engine 6 is a Winograd engine by its numerical notes. An H100 was offered `FUSED_PRODUCTS` for no other layers."""

_LEGACY: Final[dict[str, tuple[Algorithm, Rule]]] = {
    "implicit_gemm": (Algorithm.IMPLICIT_GEMM, all_of()),
    "implicit_precomp_gemm": (Algorithm.IMPLICIT_GEMM, all_of()),
    "gemm": (Algorithm.GEMM, all_of(layout_is(Layout.NCHW), dilation_1)),
    "direct": (Algorithm.DIRECT, _is_implemented),
    "fft": (Algorithm.FFT, all_of(_UNIT_STEPS_NCHW, _padded_input_within_fft, _filter_above_padding)),
    "fft_tiling": (Algorithm.FFT, all_of(_UNIT_STEPS_NCHW, _filter_within_fft_tiling, _filter_above_padding)),
    "winograd": (Algorithm.WINOGRAD, all_of(_UNIT_STEPS_NCHW, filter_is((3, 3)), _is_not_hopper)),
    "winograd_nonfused": (Algorithm.WINOGRAD, all_of(_UNIT_STEPS_NCHW, filter_is((3, 3), (5, 5)), _accurate_winograd)),
}
"""In the order of cudnnConvolutionFwdAlgo_t, whose values are 0 to 7."""

LEGACY_ALGORITHMS: Final = tuple(_LEGACY)
"""The names of the forward algorithms; a name's index is its value in cudnnConvolutionFwdAlgo_t."""


def legacy_id(algorithm: int, is_tensor_core: bool) -> str:
    """The variant id of a forward algorithm.

    Parameters
    ----------
    algorithm : int
        Its value in cudnnConvolutionFwdAlgo_t.
    is_tensor_core : bool
        Whether its math type permits tensor cores.
    """
    return f"cudnn.{LEGACY_ALGORITHMS[algorithm]}{'_tc' if is_tensor_core else ''}"


def algorithm_of(variant_id: str) -> tuple[int, bool]:
    """The forward algorithm and whether tensor cores are permitted: the arguments of `legacy_id`."""
    name = variant_id.removeprefix("cudnn.")
    return LEGACY_ALGORITHMS.index(name.removesuffix("_tc")), name.endswith("_tc")


def engine_of(variant_id: str) -> int:
    """The id that cuDNN gives the engine of a graph variant."""
    return int(variant_id.removeprefix(ENGINE_PREFIX))


def graph_engine_variant(engine_id: int) -> Variant:
    """The variant of one engine of the graph API, known or not."""
    return Variant(
        id=f"{ENGINE_PREFIX}{engine_id}",
        algorithm=Algorithm.ENGINE,
        backend=Backend.CUDNN_GRAPH,
        is_deterministic=engine_id in TENSOR_CORE_ENGINES + PLAIN_ENGINES,
        why_not=all_of(
            has_nodes, _ENGINE_RULES.get(engine_id, _NOT_FLOAT32 if engine_id in TENSOR_CORE_ENGINES else all_of())
        ),
        workspace_bytes=unknown_workspace,
        source=_GRAPH_SOURCE,
        ending=Ending.LIBRARY,
    )


def _legacy_variants() -> Iterator[Variant]:
    for value, (algorithm, rule) in enumerate(_LEGACY.values()):
        for is_tensor_core in (False, True):
            yield Variant(
                id=legacy_id(value, is_tensor_core),
                algorithm=algorithm,
                backend=Backend.CUDNN_LEGACY,
                is_deterministic=True,
                why_not=all_of(_even_padding, _NOT_FLOAT32, rule) if is_tensor_core else all_of(_even_padding, rule),
                workspace_bytes=unknown_workspace,
                source=_LEGACY_SOURCE,
                ending=Ending.APPENDED,
                in_library_call=in_fused_call(value),
            )


VARIANTS: Final[tuple[Variant, ...]] = (*_legacy_variants(), *map(graph_engine_variant, ENGINES))
