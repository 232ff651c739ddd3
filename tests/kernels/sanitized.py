"""Every kernel of ours on small layers with edges, one launch each, for NVIDIA's compute-sanitizer.

    compute-sanitizer --tool memcheck --destroy-on-device-error kernel python -m tests.kernels.sanitized
    compute-sanitizer --tool racecheck python -m tests.kernels.sanitized cuda.pointwise cuda.grouped

Each tensor is an allocation of its own, so that memcheck sees the first byte beyond it. Needs a GPU and CuPy. Without
that option an error that memcheck reports ends the process. What says nothing:

- memcheck counts all of a vector where ``cp.async`` asks for its first bytes, at the end of a tensor;
- racecheck warns of a barrier in shared memory at which the thread that began it arrives;
- initcheck does not know that bulk copies write memory.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import Any

from conv_advisor.data.epilogue import PLAIN, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.reference import random_ends, random_operands
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend, Variant

LAYERS = {
    "9-2-3-19-33": 1,
    "14-2-1-64-40": 1,
    "13-2-1-3-17": 1,
    "17-1-3-64-64": 2,
    "20-1-7-3-24": 2,
    "12-3-5-32-32-groups4": 1,
    "11-2-3-24-24-groups24": 1,
    "9-1-3-40-2": 1,
    "12-2-5-24-40": 1,
    "15-1-3-256-72": 1,
    "16-1-1-512-96": 1,
}
"""Layers and their strides: sizes that no tile divides, few channels, few filters, groups, and deep sums."""
ENDINGS = (PLAIN, Epilogue.parse("bias-residual-relu"))


def cases(device: Device, names: Collection[str] = ()) -> Iterator[tuple[Variant, ConvProblem]]:
    """Each variant of ours, or of these names, on each layer that it takes on this device."""
    for layer, stride in LAYERS.items():
        for dtype in DType:
            for layout in Layout:
                for epilogue in ENDINGS:
                    problem = ConvProblem.parse(
                        layer, dtype=dtype, layout=layout, epilogue=epilogue, stride_h=stride, stride_w=stride
                    )
                    for variant in VARIANTS.values():
                        is_ours = variant.backend is Backend.CUDA and (not names or variant.id in names)
                        if is_ours and not variant.why_not(problem, device):
                            yield variant, problem


def main() -> None:
    """Launch each case and say its name."""
    import cupy

    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.prepare import prepare
    from tests.kernels.test_cuda_gpu import storage_of

    cupy.cuda.set_allocator(None)
    device = open_runner("cuda:0").device
    stream = cupy.cuda.Stream(non_blocking=True)

    def upload(array: Any) -> Any:
        return None if array is None else cupy.asarray(array.view(storage_of(array)))

    for variant, problem in cases(device, sys.argv[1:]):
        sys.stdout.write(f"{variant.id} {problem.key}\n")
        sys.stdout.flush()
        with stream, translated():
            x, weight = map(upload, random_operands(problem, 0))
            ends = [*map(upload, random_ends(problem, 0))] if problem.epilogue else []
            y = cupy.empty(problem.y_shape, x.dtype)
            launch = prepare(variant, problem, device, DEFAULT_WORKSPACE_LIMIT_BYTES)
            launch.run(x, weight, y, *ends)
            stream.synchronize()


if __name__ == "__main__":
    main()
