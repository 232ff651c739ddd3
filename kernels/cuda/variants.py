"""Our CUDA variants: ids, rules and workspaces; pure Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.cuconv import plan as cuconv_plan
from conv_advisor.kernels.cuda.direct import plan as direct_plan
from conv_advisor.kernels.cuda.fft import plan as fft_plan
from conv_advisor.kernels.cuda.gemm import plan as gemm_plan
from conv_advisor.kernels.cuda.grouped import cut as grouped_plan
from conv_advisor.kernels.cuda.implicit_gemm import plan as implicit_gemm_plan
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import plan as implicit_gemm_nhwc_plan
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES
from conv_advisor.kernels.cuda.winograd import plan as winograd_plan
from conv_advisor.kernels.cuda.winograd_large import plan as winograd_large_plan
from conv_advisor.kernels.variant import (
    DEFAULT_WORKSPACE_LIMIT_BYTES,
    Algorithm,
    Backend,
    Rule,
    Variant,
    all_of,
    at_least_capability,
    dilation_1,
    dtype_in,
    filter_is,
    groups_1,
    layout_is,
    no_workspace,
    of_device,
    stride_1,
)

MOST_PADDED: Final = 2**30
"""Rows and columns of a padded input: the kernels compute positions in it with 32-bit integers."""

_POST: Final = "Convolutions in CUDA (post)"
_CUCONV: Final = "Jordà, Valero-Lara, Peña: cuConv, arXiv:2103.16234"
_IM2COL: Final = "Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks, 2006"
_CUDNN: Final = "Chetlur et al.: cuDNN: Efficient Primitives for Deep Learning, arXiv:1410.0759"
_FFT: Final = "Mathieu, Henaff, LeCun: Fast Training of Convolutional Networks through FFTs, arXiv:1312.5851"
_MOBILENETS: Final = "Howard et al.: MobileNets, arXiv:1704.04861"
_SPLIT_TF32: Final = "Ootomo, Yokota: Recovering single precision accuracy from Tensor Cores, arXiv:2203.03341"
_WINOGRAD: Final = "Lavin, Gray: Fast Algorithms for Convolutional Neural Networks, arXiv:1509.09308"


def _fits_indices(problem: ConvProblem, _device: Device) -> str | None:
    rows, columns = problem.h + 2 * problem.pad_h, problem.w + 2 * problem.pad_w
    if rows <= MOST_PADDED and columns <= MOST_PADDED:
        return None
    return f"padded input has {max(rows, columns)} rows or columns, above {MOST_PADDED}"


def _fits_constant_memory(problem: ConvProblem, _device: Device) -> str | None:
    filters = direct_plan.constant_filters(problem)
    if filters == 0:
        filter_bytes = problem.gemm_k * problem.dtype.itemsize_bytes
        return f"one filter has {filter_bytes} bytes, above the {direct_plan.CONSTANT_BYTES} of constant memory"
    chunks = -(-problem.k // filters)
    if chunks > direct_plan.MOST_CONSTANT_CHUNKS:
        return f"the filters take {chunks} fillings of constant memory, above {direct_plan.MOST_CONSTANT_CHUNKS}"
    return None


def _fits_shared_memory(has_halo: bool) -> Rule:
    def why_not(problem: ConvProblem, _device: Device) -> str | None:
        if direct_plan.has_tiles(problem, has_halo=has_halo):
            return None
        return f"a tile and one {problem.r}x{problem.s} filter exceed the {SHARED_BYTES} bytes of shared memory"

    return why_not


def _fits_columns(problem: ConvProblem, _device: Device) -> str | None:
    elements = gemm_plan.column_elements(problem)
    if elements <= MAX_ELEMENTS or gemm_plan.is_plain_gemm(problem):
        return None
    return f"the im2col matrix of one image has {elements} elements, above {MAX_ELEMENTS}"


def _fits_table_of_taps(problem: ConvProblem, _device: Device) -> str | None:
    taps, most = problem.r * problem.s, implicit_gemm_plan.most_taps(problem)
    return None if taps <= most else f"the filter has {taps} taps, above {most}"


def _under_the_default_limit(workspace_bytes: Callable[[int], int]) -> int:
    try:
        return workspace_bytes(DEFAULT_WORKSPACE_LIMIT_BYTES)
    except WorkspaceExceeded as error:
        return error.needed_bytes


def _gemm_bytes(problem: ConvProblem) -> int:
    return _under_the_default_limit(lambda limit: gemm_plan.plan_gemm(problem, limit).workspace_bytes)


def _winograd_bytes(problem: ConvProblem) -> int:
    return _under_the_default_limit(lambda limit: winograd_plan.plan_winograd(problem, limit).workspace_bytes)


def _is_depthwise(problem: ConvProblem, _device: Device) -> str | None:
    if problem.c == problem.groups > 1:
        return None
    return f"groups is {problem.groups}, with {problem.c // problem.groups} of the {problem.c} channels each"


@of_device
def _has_wgmma(_problem: ConvProblem, device: Device) -> str | None:
    if device.capability == "9.0":
        return None
    return f"compute capability is {device.capability or 'unknown'}, and only 9.0 has wgmma"


def _is_unpadded(problem: ConvProblem, _device: Device) -> str | None:
    if problem.pad_h == problem.pad_w == 0:
        return None
    return f"padding is {problem.pad_h}x{problem.pad_w}, not 0x0"


def _has_groups_of_channels(problem: ConvProblem, _device: Device) -> str | None:
    if 1 < problem.groups < problem.c:
        return None
    return f"groups is {problem.groups}, with {problem.c // problem.groups} of the {problem.c} channels each"


def _fits_a_slab(problem: ConvProblem, _device: Device) -> str | None:
    taps, most = problem.r * problem.s, grouped_plan.MOST_TAPS
    return None if taps <= most else f"the filter has {taps} taps, above {most}"


def _packed_bytes(problem: ConvProblem) -> int:
    return _under_the_default_limit(lambda limit: implicit_gemm_nhwc_plan.workspace_bytes(problem, limit))


def _winograd_large_bytes(problem: ConvProblem) -> int:
    return _under_the_default_limit(
        lambda limit: winograd_large_plan.workspace_bytes(problem, winograd_large_plan.plan_cut(problem, limit))
    )


def _fft_bytes(problem: ConvProblem) -> int:
    return _under_the_default_limit(lambda limit: fft_plan.plan_fft(problem, limit).buffers_bytes)


_ANY: Final = all_of(at_least_capability("8.0"), _fits_indices)
_NCHW: Final = all_of(_ANY, layout_is(Layout.NCHW))
_PLAIN: Final = all_of(_NCHW, stride_1, dilation_1, groups_1)

_PACKED: Final = all_of(groups_1, dtype_in(DType.TF32, DType.FLOAT16, DType.BFLOAT16), _has_wgmma)

_variant = partial(Variant, backend=Backend.CUDA, is_deterministic=True)

VARIANTS: Final = (
    _variant("cuda.direct_naive", Algorithm.DIRECT, why_not=_NCHW, workspace_bytes=no_workspace, source=_POST),
    _variant(
        "cuda.direct_constant",
        Algorithm.DIRECT,
        why_not=all_of(_NCHW, _fits_constant_memory),
        workspace_bytes=no_workspace,
        source=_POST,
    ),
    _variant(
        "cuda.direct_tiled_halo",
        Algorithm.DIRECT,
        why_not=all_of(_PLAIN, _fits_shared_memory(has_halo=True)),
        workspace_bytes=no_workspace,
        source=_POST,
    ),
    _variant(
        "cuda.direct_tiled_cached",
        Algorithm.DIRECT,
        why_not=all_of(_PLAIN, _fits_shared_memory(has_halo=False)),
        workspace_bytes=no_workspace,
        source=_POST,
    ),
    _variant(
        "cuda.cuconv",
        Algorithm.TWO_STAGE,
        why_not=all_of(_NCHW, groups_1),
        workspace_bytes=cuconv_plan.planes_bytes,
        source=_CUCONV,
    ),
    _variant(
        "cuda.gemm",
        Algorithm.GEMM,
        why_not=all_of(_ANY, _fits_columns),
        workspace_bytes=_gemm_bytes,
        least_workspace_bytes=gemm_plan.least_gemm_bytes,
        source=_IM2COL,
    ),
    _variant(
        "cuda.implicit_gemm",
        Algorithm.IMPLICIT_GEMM,
        why_not=all_of(_NCHW, groups_1, _fits_table_of_taps),
        workspace_bytes=no_workspace,
        source=_CUDNN,
    ),
    _variant(
        "cuda.implicit_gemm_nhwc",
        Algorithm.IMPLICIT_GEMM,
        why_not=all_of(_ANY, layout_is(Layout.NHWC), _PACKED),
        workspace_bytes=_packed_bytes,
        least_workspace_bytes=implicit_gemm_nhwc_plan.least_workspace_bytes,
        source=_CUDNN,
    ),
    _variant(
        "cuda.implicit_gemm_transposed",
        Algorithm.IMPLICIT_GEMM,
        why_not=all_of(_NCHW, _PACKED),
        workspace_bytes=_packed_bytes,
        least_workspace_bytes=implicit_gemm_nhwc_plan.least_workspace_bytes,
        source=_CUDNN,
    ),
    _variant("cuda.fft", Algorithm.FFT, why_not=_PLAIN, workspace_bytes=_fft_bytes, source=_FFT),
    _variant(
        "cuda.winograd_fused",
        Algorithm.WINOGRAD,
        why_not=all_of(_PLAIN, filter_is((3, 3))),
        workspace_bytes=no_workspace,
        source=_WINOGRAD,
    ),
    _variant(
        "cuda.winograd_nonfused",
        Algorithm.WINOGRAD,
        why_not=all_of(_PLAIN, filter_is((3, 3))),
        workspace_bytes=_winograd_bytes,
        source=_WINOGRAD,
    ),
    _variant(
        "cuda.winograd_nonfused_4x4_3x3",
        Algorithm.WINOGRAD,
        why_not=all_of(_PLAIN, filter_is((3, 3)), dtype_in(DType.FLOAT32), _has_wgmma),
        workspace_bytes=_winograd_large_bytes,
        least_workspace_bytes=winograd_large_plan.least_workspace_bytes,
        source=_WINOGRAD,
    ),
    _variant(
        "cuda.winograd_nonfused_4x4_5x5",
        Algorithm.WINOGRAD,
        why_not=all_of(_PLAIN, filter_is((5, 5)), dtype_in(DType.FLOAT32), _has_wgmma),
        workspace_bytes=_winograd_large_bytes,
        least_workspace_bytes=winograd_large_plan.least_workspace_bytes,
        source=_WINOGRAD,
    ),
    _variant(
        "cuda.pointwise",
        Algorithm.IMPLICIT_GEMM,
        why_not=all_of(_NCHW, stride_1, groups_1, filter_is((1, 1)), _is_unpadded, _has_wgmma),
        workspace_bytes=no_workspace,
        source=_SPLIT_TF32,
    ),
    _variant(
        "cuda.depthwise",
        Algorithm.DIRECT,
        why_not=all_of(_ANY, _is_depthwise),
        workspace_bytes=no_workspace,
        source=_MOBILENETS,
    ),
    _variant(
        "cuda.grouped",
        Algorithm.IMPLICIT_GEMM,
        why_not=all_of(_ANY, _has_groups_of_channels, _fits_a_slab),
        workspace_bytes=no_workspace,
        source=_SPLIT_TF32,
    ),
)
