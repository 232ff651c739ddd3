"""Launcher of nhwc_pack.cu, a kernel of ``cuda.implicit_gemm_tma``, and nhwc_unpack.cu, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.addresses import Address
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.implicit_gemm_nhwc.launch import start_packing
from conv_advisor.kernels.cuda.implicit_gemm_tma.launch import launch
from conv_advisor.kernels.cuda.implicit_gemm_tma.limits import by_patches
from conv_advisor.kernels.cuda.implicit_gemm_tma.plan import plan_cut
from conv_advisor.kernels.cuda.implicit_gemm_tma_packed import plan as plans
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.cuda.parts.launching import Start, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import overlapping
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """Pack, multiply and unpack each chunk of images: each kernel begins while the one before it ends, and waits."""
    images, itemsize = plans.images_at_a_time(problem, workspace_limit_bytes), problem.dtype.itemsize_bytes
    scratch = tuple(map(Scratch, plans.scratch_bytes(problem, images)))
    counts = [(begin, min(images, problem.n - begin)) for begin in range(0, problem.n, images)]
    with overlapping():
        behind = {
            count: (_multiplication(problem, count, device), start_unpacking(problem, count)) for _, count in counts
        }
    steps = [
        (
            begin * problem.c * problem.h * problem.w * itemsize,
            begin * problem.k * problem.p * problem.q * itemsize,
            start_packing(problem, count, has_weight=begin == 0),
            *behind[count],
        )
        for begin, count in counts
    ]

    def run(x: Any, weight: Any, y: Any, *ends: Any) -> None:
        packed_weight, packed_x, rows = (each.ptr for each in scratch)
        for x_offset, y_offset, pack, multiply, unpack in steps:
            pack(x.data.ptr + x_offset, weight.data.ptr, packed_x, packed_weight)
            multiply(Address(packed_x), Address(packed_weight), Address(rows))
            unpack(rows, y.data.ptr + y_offset, *addresses(problem.epilogue, ends, y_offset))

    return Launch(run, sum(each.nbytes for each in scratch), scratch=scratch, by_address=True)


def _multiplication(problem: ConvProblem, images: int, device: Device) -> Callable[..., None]:
    """The multiplication of ``images`` packed images, with the cut that its own plan chooses."""
    packed = by_patches(plans.packed(problem, images))
    return launch(packed, device, plan_cut(packed, device), plans.pitch_of(problem)).run


def start_unpacking(problem: ConvProblem, images: int) -> Start:
    """The unpacking of ``images`` images, with the epilogue: it takes the outputs, y, and the epilogue's operands."""
    defines = plans.unpack_defines(problem) | defines_of(problem.epilogue)
    kernel = load_kernel(plans.UNPACK_SOURCE, "nhwc_unpack", problem.dtype, **defines)
    blocks, sizes = plans.unpack_arguments(problem, images)
    return prepare_start(kernel, (blocks, 1, 1), plans.UNPACK_THREADS, 0, sizes, overlaps=True, is_structure=True)
