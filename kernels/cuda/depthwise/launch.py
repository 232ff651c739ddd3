"""Launchers of depthwise.cu, depthwise_channels.cu, depthwise_nhwc.cu and depthwise_any.cu."""

from __future__ import annotations

from math import ceil, prod
from typing import Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.cuda.compile import load_kernel, shape_arguments
from conv_advisor.kernels.cuda.depthwise import cut as cuts
from conv_advisor.kernels.cuda.depthwise import plan
from conv_advisor.kernels.cuda.parts.division import divider
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import Start, launch_of, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlaps
from conv_advisor.kernels.variant import Launch

_THREADS: Final = 256
"""Threads of a block of the untiled kernels."""


def prepare(problem: ConvProblem, device: Device, _workspace_limit_bytes: int) -> Launch:
    """One launch, with the cut that the plan chooses."""
    return launch(problem, device, plan.plan_cut(problem, device))


def launch(problem: ConvProblem, _device: Device, cut: cuts.Cut) -> Launch:
    """One launch with this cut."""
    if isinstance(cut, cuts.Planes):
        start = _start_planes(problem, cut)
    elif isinstance(cut, cuts.Channels):
        start = _start_channels(problem, cut)
    elif isinstance(cut, cuts.Staged):
        start = _start_staged(problem, cut)
    elif isinstance(cut, cuts.Scale):
        start = _start_scale(problem)
    else:
        start = _start_any(problem)
    return launch_of(start, problem.epilogue)


def _dividers(*divisors: int) -> tuple[int, ...]:
    return tuple(number for divisor in divisors for number in divider(int(divisor)))


def _start_planes(problem: ConvProblem, cut: cuts.Planes) -> Start:
    kernel = load_kernel(
        plan.PLANES_SOURCE,
        "depthwise_planes",
        problem.dtype,
        **cut.defines(cuts.window(problem), int(cut.pairs_of(problem))),
        **defines_of(problem.epilogue),
    )
    (planes, rows), (blocks, threads) = cut.share_of(problem), cut.grid_of(problem)
    multiplier = cuts.multiplier_of(problem)
    tiles = ceil(rows / cut.strip), ceil(problem.q / cut.tq)
    sizes = (
        *(problem.n * problem.k, problem.h, problem.w, problem.k, problem.p, problem.q, problem.pad_h, problem.pad_w),
        *(planes, rows, cut.repeats, multiplier, cut.slack_of(problem), cut.shared_elements(problem)[0]),
        *_dividers(ceil(problem.p / rows), multiplier, problem.k, *tiles),
    )
    return prepare_start(
        kernel,
        (int(blocks), 1, 1),
        int(threads),
        int(cut.shared_bytes(problem)),
        sizes,
        overlaps=overlaps(plan.PLANES_SOURCE),
    )


def _start_channels(problem: ConvProblem, cut: cuts.Channels) -> Start:
    defines = cut.defines(cuts.window(problem)) | defines_of(problem.epilogue)
    kernel = load_kernel(plan.CHANNELS_SOURCE, "depthwise_channels", problem.dtype, **defines)
    (lanes, parts), (tiles_p, tiles_q) = cut.lanes_of(problem), cut.tiles_of(problem)
    blocks, threads = cut.grid_of(problem)
    sizes = (
        *(problem.n, problem.c, problem.h, problem.w, problem.k, problem.p, problem.q, problem.pad_h, problem.pad_w),
        *(lanes, parts, tiles_p, tiles_q, cut.repeats),
        *_dividers(cuts.multiplier_of(problem), lanes, tiles_q, tiles_p, parts),
    )
    return prepare_start(kernel, (int(blocks), 1, 1), int(threads), 0, sizes, overlaps=overlaps(plan.CHANNELS_SOURCE))


def _start_staged(problem: ConvProblem, cut: cuts.Staged) -> Start:
    kernel = load_kernel(
        plan.STAGED_SOURCE,
        "depthwise_staged",
        problem.dtype,
        **cut.defines(cuts.window(problem), int(cuts.copy_of(problem))),
        **defines_of(problem.epilogue),
    )
    (lanes, parts), (rows, columns), bands = cut.lanes_of(problem), cut.share_of(problem), cut.bands_of(problem)
    blocks, threads = cut.grid_of(problem)
    divisors = (bands[1], bands[0], parts, lanes, cut.taken_of(problem)[1], cut.vectors_of(problem), columns // cut.tq)
    sizes = (
        *(problem.c, problem.h, problem.w, problem.p, problem.q, problem.pad_h, problem.pad_w),
        *(lanes, parts, rows, columns, cut.repeats, *bands, *_dividers(*divisors)),
    )
    return prepare_start(
        kernel,
        (int(blocks), 1, 1),
        int(threads),
        int(cut.shared_bytes(problem)),
        sizes,
        overlaps=overlaps(plan.STAGED_SOURCE),
    )


def _start_scale(problem: ConvProblem) -> Start:
    kernel = load_kernel(plan.ANY_SOURCE, "depthwise_scale", problem.dtype, **defines_of(problem.epilogue))
    elements = prod(problem.y_shape)
    inner = problem.h * problem.w if problem.layout is Layout.NCHW else 1
    blocks = ceil(elements / (_THREADS * (16 // problem.dtype.itemsize_bytes)))
    sizes = (elements, problem.k, inner, *_dividers(problem.k, inner))
    return prepare_start(kernel, (blocks, 1, 1), _THREADS, 0, sizes, overlaps=overlaps(plan.ANY_SOURCE))


def _start_any(problem: ConvProblem) -> Start:
    kernel = load_kernel(plan.ANY_SOURCE, "depthwise_any", problem.dtype, **defines_of(problem.epilogue))
    sizes = (*map(int, shape_arguments(problem)), int(problem.layout is Layout.NHWC))
    return prepare_start(
        kernel, (ceil(prod(problem.y_shape) / _THREADS), 1, 1), _THREADS, 0, sizes, overlaps=overlaps(plan.ANY_SOURCE)
    )
