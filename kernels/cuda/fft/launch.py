"""FFT by cuFFT around our own product; launcher of fft.cu."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.compile import load_kernel
from conv_advisor.kernels.cuda.fft import plan as plans
from conv_advisor.kernels.cuda.fft.plan import FftPlan
from conv_advisor.kernels.cuda.parts.arithmetic import threads_for
from conv_advisor.kernels.cuda.parts.epilogue import addresses, defines_of
from conv_advisor.kernels.variant import Launch


def prepare(problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
    """For each chunk of filters and each chunk of images: pad, transform, multiply, transform back, crop."""
    from cupy.cuda import cufft

    plan = plans.plan_fft(problem, workspace_limit_bytes)
    x = _Planes(plan, plan.images * problem.c, cufft.CUFFT_R2C)
    weight = _Planes(plan, plan.filters * problem.c, cufft.CUFFT_R2C)
    y = _Planes(plan, plan.images * plan.filters, cufft.CUFFT_C2R)
    workspace_bytes = sum(planes.bytes for planes in (x, weight, y))
    if workspace_bytes > workspace_limit_bytes:
        raise WorkspaceExceeded(workspace_bytes, workspace_limit_bytes)
    product = _Product(problem, plan, device)

    def run(x_in: Any, weight_in: Any, y_out: Any, *ends: Any) -> None:
        for k_begin in range(0, problem.k, plan.filters):
            filters = min(plan.filters, problem.k - k_begin)
            product.pad(weight_in, k_begin, filters, problem.r, problem.s, weight)
            weight.transform(filters * problem.c)
            for n_begin in range(0, problem.n, plan.images):
                images = min(plan.images, problem.n - n_begin)
                product.pad(x_in, n_begin, images, problem.h, problem.w, x)
                x.transform(images * problem.c)
                product.multiply(x, weight, y, images, filters)
                y.transform(images * filters)
                product.crop(y, (y_out, *ends), n_begin, images, k_begin, filters)

    return Launch(run, workspace_bytes)


class _Planes:
    """A buffer of padded planes and the cuFFT plan that transforms them in place, some at a time."""

    def __init__(self, plan: FftPlan, planes: int, kind: int) -> None:
        import cupy
        from cupy.cuda import cufft

        self._batch = plan.batch_of(planes)
        self._step = self._batch * plan.plane_floats
        self.buffer = cupy.empty(plan.rounded(planes) * plan.plane_floats, "float32")
        real = ((plan.rows, plan.pitch), 1, plan.plane_floats)
        transformed = ((plan.rows, plan.pitch // 2), 1, plan.frequencies)
        source, target = (real, transformed) if kind == cufft.CUFFT_R2C else (transformed, real)
        self._plan = cufft.PlanNd((plan.rows, plan.columns), *source, *target, kind, self._batch, "C", 1, None)
        self._direction = cufft.CUFFT_FORWARD if kind == cufft.CUFFT_R2C else cufft.CUFFT_INVERSE

    @property
    def bytes(self) -> int:
        """Bytes of the buffer and of cuFFT's work area."""
        return int(self.buffer.nbytes) + int(self._plan.work_area.mem.size)

    def transform(self, planes: int) -> None:
        """Transform the first planes; the last call also transforms planes beyond them, which are never read."""
        for call in range(ceil(planes / self._batch)):
            part = self.buffer[call * self._step : (call + 1) * self._step]
            self._plan.fft(part, part, self._direction)


class _Product:
    """The kernels of fft.cu with the sizes of one problem."""

    def __init__(self, problem: ConvProblem, plan: FftPlan, device: Device) -> None:
        self._problem, self._plan = problem, plan
        tile_n, tile_k = plans.fft_tile(plan.images, plan.filters, plan.frequencies, device.processors)
        self._tile = (tile_n, tile_k)
        self._pad, self._multiply, self._crop = (
            load_kernel(plans.SOURCE, name, problem.dtype, TILE_N=tile_n, TILE_K=tile_k, **defines_of(problem.epilogue))
            for name in ("fft_pad", "fft_multiply", "fft_crop")
        )

    def pad(self, source: Any, begin: int, count: int, height: int, width: int, target: _Planes) -> None:
        """Widen `count` images (or filters) from `begin` on, C planes each, into padded planes."""
        plan, channels = self._plan, self._problem.c
        address = source.data.ptr + begin * channels * height * width * self._problem.dtype.itemsize_bytes
        threads = threads_for(plan.plane_floats)
        blocks = count * channels * ceil(plan.plane_floats / threads)
        sizes = _int32s(height, width, plan.rows, plan.pitch)
        self._pad((blocks,), (threads,), (address, target.buffer, *sizes))

    def multiply(self, x: _Planes, weight: _Planes, y: _Planes, images: int, filters: int) -> None:
        """Multiply and sum over the channels, at each frequency."""
        frequencies = self._plan.frequencies
        threads = ceil(images / self._tile[0]) * ceil(filters / self._tile[1]) * frequencies
        sizes = _int32s(images, self._problem.c, filters, frequencies)
        self._multiply((ceil(threads / 256),), (256,), (x.buffer, weight.buffer, y.buffer, *sizes))

    def crop(
        self, source: _Planes, outputs: tuple[Any, ...], n_begin: int, images: int, k_begin: int, filters: int
    ) -> None:
        """Scale, apply the epilogue and write the outputs of some images and filters; `outputs` is y and its `ends`."""
        problem, plan = self._problem, self._plan
        pixels = problem.p * problem.q
        threads = threads_for(pixels)
        y, *ends = outputs
        skipped = n_begin * problem.k * pixels * problem.dtype.itemsize_bytes
        tensors = (y.data.ptr + skipped, *addresses(problem.epilogue, ends, skipped))
        sizes = _int32s(problem.k, problem.p, problem.q, problem.pad_h, problem.pad_w)
        padded = _int32s(plan.rows, plan.columns, plan.pitch, k_begin, filters)
        scale = np.float32(1 / (plan.rows * plan.columns))
        blocks = images * filters * ceil(pixels / threads)
        self._crop((blocks,), (threads,), (source.buffer, *tensors, *sizes, *padded, scale))


def _int32s(*values: int) -> tuple[np.int32, ...]:
    return tuple(np.int32(value) for value in values)
