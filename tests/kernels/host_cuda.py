"""The CUDA launchers on a CPU: a stand-in for CuPy whose kernels are compiled by g++, cuBLAS and cuFFT by NumPy.

It lives in a process of its own (see `install`), so that it can take CuPy's name without anybody else seeing it. An
array ends where a page begins that nobody may touch, so that a kernel that reads or writes beyond it ends the process;
before it lies a zone of NaN, which spoils what reads it and is looked at for writes.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.builds import kept_build
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.variant import Launch

SHIM = Path(__file__).with_name("host_shim.h")
LIBRARY = "kernels.so"
DEVICE = Device(id="host", name="host", kind="cuda", capability="8.0", processors=1)
"""With few processors, so that small problems already take the kernels' large tiles, and without clusters."""
_C = ctypes.CDLL(None)
_PROT_NONE = 0
_GUARD_BYTE = 0xFF
_R2C, _C2R = 42, 44


class HostArray:
    """As much of a CuPy array as the launchers use."""

    def __init__(self, values: np.ndarray, owner: np.ndarray) -> None:
        self.values, self._owner = values, owner
        self.data = SimpleNamespace(ptr=values.ctypes.data)
        self.size, self.nbytes = values.size, values.nbytes

    def __getitem__(self, part: slice) -> HostArray:
        return HostArray(self.values[part], self._owner)

    def is_guard_intact(self) -> bool:
        """Whether nothing was written before the array."""
        return bool((self._owner[: self.values.ctypes.data - self._owner.ctypes.data] == _GUARD_BYTE).all())


def empty(shape: Any, dtype: Any) -> HostArray:
    """An array full of NaN behind a zone of NaN; 0xFFFF and 0xFFFFFFFF are NaN in every type used."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    usable = (size // mmap.PAGESIZE + 2) * mmap.PAGESIZE
    memory = mmap.mmap(-1, usable + mmap.PAGESIZE)
    owner = np.frombuffer(memory, np.uint8)[:usable]
    owner[:] = _GUARD_BYTE
    status = _C.mprotect(ctypes.c_void_p(owner.ctypes.data + usable), ctypes.c_size_t(mmap.PAGESIZE), _PROT_NONE)
    assert status == 0
    return HostArray(owner[usable - size :].view(dtype).reshape(shape), owner)


def alloc(nbytes: int) -> SimpleNamespace:
    """As much of ``cupy.cuda.alloc`` as launchers use: memory full of NaN, which lives as long as what is returned."""
    array = empty(nbytes, np.uint8)
    return SimpleNamespace(ptr=array.data.ptr, array=array)


class HostModule:
    """A ``cupy.RawModule`` compiled by g++."""

    def __init__(self, code: str, options: tuple[str, ...]) -> None:
        self._library = _build(code, tuple(option for option in options if option.startswith("-D")))

    def get_function(self, name: str) -> HostKernel:
        """The kernel of this name."""
        return HostKernel(self._library[f"launch_{name}"])

    def get_global(self, name: str) -> SimpleNamespace:
        """The address of a variable."""
        return SimpleNamespace(ptr=ctypes.addressof(ctypes.c_char.in_dll(self._library, name)))


class HostKernel:
    """A ``cupy.RawKernel``."""

    def __init__(self, launch: Any) -> None:
        self._launch = launch
        launch.argtypes = (*[ctypes.c_uint] * 4, ctypes.c_size_t, ctypes.c_void_p)
        self.kernel = self
        self.max_dynamic_shared_size_bytes = 48 * 1024

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        across, down = grid if len(grid) > 1 else (*grid, 1)
        assert 0 < across * down < 2**31
        assert np.prod(block) <= 1024
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        values = [_value(argument) for argument in args]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        status = self._launch(across, down, block[0], block[1] if len(block) > 1 else 1, shared_mem, pointers)
        assert status == 0, "the kernel wrote beyond its dynamic shared memory"


def _value(argument: Any) -> Any:
    if isinstance(argument, HostArray):
        return ctypes.c_void_p(argument.data.ptr)
    if isinstance(argument, ctypes.Array):
        return argument
    if type(argument) is int:
        return ctypes.c_longlong(argument)
    types = {np.int32: ctypes.c_int32, np.uint32: ctypes.c_uint32, np.float32: ctypes.c_float}
    return types[type(argument)](argument.item())


@cache
def _build(code: str, defines: tuple[str, ...]) -> ctypes.CDLL:
    dynamic = re.findall(r"extern __shared__ __align__\(16\) float (\w+)\[\]", code)
    kernels = re.findall(r"__launch_bounds__\([^)]*\)\s*(\w+)\(", code)
    head = f"#define DYNAMIC_SHARED {dynamic[0]}\n" if dynamic else ""
    launchers = "\n".join(f"LAUNCHER({kernel})" for kernel in kernels)
    code = code.replace("extern __shared__", "extern")
    text = f'{head}#include "{SHIM.name}"\n{code}\n{launchers}\n'
    command = ["g++", "-std=c++17", "-O2", "-fno-strict-aliasing", "-w", "-fPIC", "-shared", *defines]

    shim = SHIM.read_text()

    def build(folder: Path) -> None:
        for header in ("cuda_fp16.h", "cuda_bf16.h"):
            (folder / header).touch()
        (folder / SHIM.name).write_text(shim)
        source = folder / "kernels.cpp"
        source.write_text(text)
        built = subprocess.run(
            [*command, f"-I{folder}", source, "-o", folder / LIBRARY], capture_output=True, text=True, check=False
        )
        assert built.returncode == 0, built.stderr

    kept = kept_build("g++", [text, shim, *command, _compiler_version()], build)
    return ctypes.CDLL(str(kept / LIBRARY))


@cache
def _compiler_version() -> str:
    return subprocess.run(["/usr/bin/env", "g++", "-v"], capture_output=True, text=True, check=True).stderr


class HostPlan:
    """A ``cupy.cuda.cufft.PlanNd`` of rank 2, by numpy.fft."""

    def __init__(
        self,
        shape: tuple[int, int],
        inembed: tuple[int, int],
        istride: int,
        idist: int,
        onembed: tuple[int, int],
        ostride: int,
        odist: int,
        fft_type: int,
        batch: int,
        order: str,
        last_axis: int,
        last_size: int | None,
    ) -> None:
        assert (istride, ostride, order) == (1, 1, "C")
        assert fft_type in (_R2C, _C2R)
        self._shape, self._batch, self._is_forward = shape, batch, fft_type == _R2C
        self._source, self._target = (inembed, idist), (onembed, odist)
        self.work_area = SimpleNamespace(mem=SimpleNamespace(size=0))

    def fft(self, source: HostArray, target: HostArray, direction: int) -> None:
        """Transform a batch in place; the transform back is not scaled, as cuFFT's is not."""
        rows, columns = self._shape
        kinds = (np.float32, np.complex64) if self._is_forward else (np.complex64, np.float32)
        widths = (columns, columns // 2 + 1) if self._is_forward else (columns // 2 + 1, columns)
        planes = self._view(source, kinds[0], *self._source)[:, :rows, : widths[0]].copy()
        with np.errstate(invalid="ignore"):
            found = (
                np.fft.rfft2(planes.astype(np.float64))
                if self._is_forward
                else np.fft.irfft2(planes.astype(np.complex128), self._shape) * (rows * columns)
            )
        self._view(target, kinds[1], *self._target)[:, :rows, : widths[1]] = found

    def _view(self, array: HostArray, dtype: Any, embed: tuple[int, int], distance: int) -> np.ndarray:
        flat = array.values.view(dtype)
        item = flat.itemsize
        return np.lib.stride_tricks.as_strided(
            flat, (self._batch, *embed), (distance * item, embed[1] * item, item), writeable=True
        )


class HostBlas:
    """The four functions of cuBLAS that blas.py calls."""

    def __init__(self) -> None:
        self.cublasCreate_v2 = self.cublasSetStream_v2 = self.cublasSetWorkspace_v2 = lambda *_arguments: 0

    def cublasGemmStridedBatchedEx(  # noqa: N802 - cuBLAS's own name
        self, _handle: Any, trans_a: int, trans_b: int, m: int, n: int, k: int, *rest: Any
    ) -> int:
        """C = op(A) · B, column-major."""
        _alpha, a, a_type, lda, stride_a, b, b_type, ldb, stride_b, _beta, c, c_type, ldc, stride_c, batch, *_ = rest
        assert trans_b == 0
        assert a_type == b_type == c_type
        shape_a = (k, m) if trans_a else (m, k)
        for index in range(batch):
            left = _matrix(a, a_type, *shape_a, lda, index * stride_a)
            left = left.T if trans_a else left
            product = _wide(left) @ _wide(_matrix(b, b_type, k, n, ldb, index * stride_b))
            _matrix(c, c_type, m, n, ldc, index * stride_c)[...] = _narrow(product, c_type)
        return 0


_TYPES = {0: np.float32, 2: np.float16, 14: np.uint16}


def _matrix(address: int, data_type: int, rows: int, columns: int, leading: int, offset: int) -> np.ndarray:
    assert leading >= rows
    dtype = np.dtype(_TYPES[data_type])
    span = leading * (columns - 1) + rows
    memory = (ctypes.c_char * (span * dtype.itemsize)).from_address(address + offset * dtype.itemsize)
    flat = np.frombuffer(memory, dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (dtype.itemsize, leading * dtype.itemsize))


def _wide(matrix: np.ndarray) -> np.ndarray:
    if matrix.dtype == np.uint16:
        return (matrix.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return matrix.astype(np.float64)


def _narrow(matrix: np.ndarray, data_type: int) -> np.ndarray:
    import ml_dtypes

    return matrix.astype(ml_dtypes.bfloat16).view(np.uint16) if data_type == 14 else matrix.astype(_TYPES[data_type])


class HostProducts:
    """winograd_gemm.cu, whose instructions no CPU has: its operands as the kernel reads them, multiplied by NumPy."""

    def __init__(self, options: tuple[str, ...]) -> None:
        self._defines = dict(re.findall(r"-D(\w+)=(\d+)", " ".join(options)))
        self.kernel, self.max_dynamic_shared_size_bytes = self, 0

    def get_function(self, _name: str) -> HostProducts:
        """The only kernel."""
        return self

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[Any, ...], shared_mem: int = 0
    ) -> None:
        bm, bn = int(self._defines["BM"]), int(self._defines["BN"])
        left, right, m = args[:3]
        rows_left, slices, positions, rows_right = map(int, args[3:])
        assert shared_mem <= self.max_dynamic_shared_size_bytes
        assert block == (2 * bm,)
        assert rows_right % bn == 0
        assert grid == (positions * -(-rows_left // bm) * (rows_right // bn), 1)
        lefts, rights = (
            _parts(address, (rows // 64, slices, positions, 2, 8, 2, 8, 8))
            for address, rows in ((left, -(-rows_left // bm) * bm), (right, rows_right))
        )
        with np.errstate(invalid="ignore"):
            products = np.einsum("plc,prc->rlp", lefts[:, :rows_left], rights, optimize=True)
        products = products.reshape(-1, 64, rows_left, positions).transpose(0, 2, 3, 1)
        memory = (ctypes.c_char * (4 * products.size)).from_address(m)
        np.frombuffer(memory, np.float32)[...] = products.astype(np.float32).reshape(-1)


def _parts(address: int, shape: tuple[int, ...]) -> np.ndarray:
    """float64 (positions, rows, channels) from core matrices of float16 parts."""
    memory = (ctypes.c_char * (2 * int(np.prod(shape)))).from_address(address)
    parts = np.frombuffer(memory, np.float16).reshape(shape).astype(np.float64)
    return parts.sum(3).transpose(2, 0, 3, 5, 1, 4, 6).reshape(shape[2], shape[0] * 64, shape[1] * 16)


def prepare_start(
    kernel: Any,
    grid: tuple[int, int, int],
    threads: int,
    shared_bytes: int,
    sizes: Sequence[int],
    *,
    cluster: int = 1,
    is_structure: bool = False,
    **_attributes: bool,
) -> Callable[..., None]:
    """As that of `launching`, which needs a driver: kernels run one after the other, and a block is its own cluster."""
    assert cluster == 1
    assert grid[2] == 1
    kernel.max_dynamic_shared_size_bytes = max(shared_bytes, kernel.max_dynamic_shared_size_bytes)
    words = np.array(sizes, np.int64).astype(np.int32)
    arguments = [(ctypes.c_int32 * len(words))(*words.tolist())] if is_structure else [*words]
    return lambda *addresses: kernel(grid[:2], (threads,), (*addresses, *arguments), shared_mem=shared_bytes)


def _load_cubin(source: str, name: str, options: tuple[str, ...], _arch: str | None) -> HostModule | HostProducts:
    from tests.kernels import host_accelerator

    if name == "winograd_gemm":
        return HostProducts(options)
    is_fed = name == "implicit_gemm_tma_transposed"
    return HostModule(host_accelerator.translated(source) if is_fed else source, options)


def install() -> None:
    """Take the names ``cupy`` and ``cupy.cuda`` in this process, before any launcher is imported."""
    cupy, cuda, cufft = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.cufft")
    cufft.__dict__.update(PlanNd=HostPlan, CUFFT_R2C=_R2C, CUFFT_C2R=_C2R, CUFFT_FORWARD=-1, CUFFT_INVERSE=1)
    cuda.__dict__.update(
        alloc=alloc,
        cufft=cufft,
        get_current_stream=lambda: SimpleNamespace(ptr=0),
        runtime=SimpleNamespace(
            memcpyDeviceToDevice=3,
            memcpyAsync=lambda target, source, size, kind, stream: ctypes.memmove(target, source, size),
        ),
    )
    cupy.__dict__.update(cuda=cuda, empty=empty, RawModule=HostModule)
    sys.modules.update({"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.cufft": cufft})
    from conv_advisor.kernels.cuda import compile as compiling
    from conv_advisor.kernels.cuda import cubin
    from conv_advisor.kernels.cuda.implicit_gemm_tma import encoding
    from conv_advisor.kernels.cuda.parts import blas, launching
    from tests.kernels import host_accelerator

    launching.prepare_start = prepare_start
    cubin.load_cubin = _load_cubin
    encoding._driver = cache(host_accelerator.HostDriver)
    blas._library = HostBlas
    compiling._include_path = list


def error_of(
    variant_id: str,
    problem: ConvProblem,
    workspace_limit_bytes: int = 2**30,
    *,
    is_finite: bool = True,
    device: Device = DEVICE,
) -> float:
    """Run a variant on random operands, from a y full of NaN, and compare with the float64 reference.

    Where not `is_finite`, the first weight is infinite and the last input is NaN.
    """
    x, weight = reference.random_operands(problem, 0)
    if not is_finite:
        weight.flat[0], x.flat[-1] = np.inf, np.nan
    y = result_of(variant_id, problem, x, weight, workspace_limit_bytes, device=device)
    return comparison.max_error(y, reference.convolve(problem, x, weight))


def result_of(
    variant_id: str,
    problem: ConvProblem,
    x: np.ndarray,
    weight: np.ndarray,
    workspace_limit_bytes: int = 2**30,
    *,
    device: Device = DEVICE,
) -> np.ndarray:
    """Run a variant on these operands, from a y full of NaN."""
    from conv_advisor.kernels.cuda.prepare import prepare

    launch = prepare(get(variant_id), problem, device, workspace_limit_bytes)
    assert launch.workspace_bytes <= workspace_limit_bytes
    return result_of_launch(launch, problem, x, weight)


def ended_result_of(
    variant_id: str,
    problem: ConvProblem,
    operands: tuple[np.ndarray | None, ...],
    device: Device = DEVICE,
    workspace_limit_bytes: int = 2**30,
) -> np.ndarray:
    """Run a variant with what follows the convolution, whether it offers that or not, from a y full of NaN.

    Operands are x, weight, bias and residual; None where the epilogue has none.
    """
    from conv_advisor.kernels.cuda.prepare import prepare_unasked

    launch = prepare_unasked(get(variant_id), problem, device, workspace_limit_bytes)
    return result_of_launch(launch, problem, *operands)


def result_of_launch(
    launch: Launch, problem: ConvProblem, x: np.ndarray, weight: np.ndarray, *ends: np.ndarray | None
) -> np.ndarray:
    """Run what was prepared on these operands, from a y full of NaN; bias and residual come behind the weight."""
    storage = np.uint16 if problem.dtype is DType.BFLOAT16 else x.dtype
    arrays = [None if values is None else _filled(values, storage) for values in (x, weight, *ends)]
    y = empty(problem.y_shape, storage)
    launch.run(*arrays[:2], y, *arrays[2:])
    assert all(array.is_guard_intact() for array in (*arrays, y) if array)
    result: np.ndarray = y.values.view(x.dtype).copy()
    return result


def ended_error(
    problem: ConvProblem, run: Callable[..., np.ndarray], x_and_weight: tuple[np.ndarray, np.ndarray] | None = None
) -> float:
    """The error against float64 of what `run` makes of random operands: x, weight, bias and residual."""
    operands = (*(x_and_weight or reference.random_operands(problem, 0)), *reference.random_ends(problem, 0))
    y = run(*operands)
    given = comparison.given_outputs(problem, *operands[:2])
    _, scale = reference.expected_at(problem, *operands[:2], given, *operands[2:])
    return comparison.max_error(y, reference.convolve(problem, *operands), scale)


def launch_error(launch: Launch, problem: ConvProblem) -> float:
    """The same of what was prepared, from a y full of NaN."""
    return ended_error(problem, partial(result_of_launch, launch, problem))


def within_error(launch: Launch, problem: ConvProblem, channels: int, first: int) -> float:
    """The same of what was prepared, nhwc, where y is some of so many channels; those around it stay as they were."""
    assert launch.within is not None

    def run(x: np.ndarray, weight: np.ndarray, *ends: np.ndarray | None) -> np.ndarray:
        storage = np.uint16 if problem.dtype is DType.BFLOAT16 else x.dtype
        arrays = [None if values is None else _filled(values, storage) for values in (x, weight, *ends)]
        whole = empty((*problem.y_shape[:3], channels), storage)
        y = SimpleNamespace(data=SimpleNamespace(ptr=whole.data.ptr + first * whole.values.itemsize))
        launch.within(channels)(*arrays[:2], y, *arrays[2:])
        assert all(array.is_guard_intact() for array in (*arrays, whole) if array)
        around = np.delete(whole.values, np.s_[first : first + problem.k], axis=3)
        assert (np.ascontiguousarray(around).view(np.uint8) == _GUARD_BYTE).all(), "it wrote beside its channels"
        return np.ascontiguousarray(whole.values[..., first : first + problem.k]).view(x.dtype)

    return ended_error(problem, run)


def prologue_error(launch: Launch, problem: ConvProblem, channels: int) -> float:
    """The same of what was prepared, nhwc, behind a prologue, where x is the first of so many channels; NaN the others.

    The reference convolves what the prologue makes of x, rounded to x's type.
    """
    assert launch.behind_prologue is not None
    scale, shift = np.random.default_rng(1).normal(size=(2, problem.c)).astype(np.float32)
    x, weight = reference.random_operands(problem, 0)
    made = np.maximum(x.astype(np.float32) * scale + shift, np.float32(0)).astype(x.dtype)
    storage = np.uint16 if problem.dtype is DType.BFLOAT16 else x.dtype

    def run(_: np.ndarray, weight: np.ndarray, *ends: np.ndarray | None) -> np.ndarray:
        whole = np.full((*problem.x_shape[:3], channels), np.nan, x.dtype)
        whole[..., : problem.c] = x
        arrays = [None if values is None else _filled(values, storage) for values in (whole, weight, *ends)]
        prologue = _filled(np.stack([scale, shift]), np.float32)
        y = empty(problem.y_shape, storage)
        launch.behind_prologue(channels)(*arrays[:2], y, prologue, *arrays[2:])
        assert all(array.is_guard_intact() for array in (*arrays, prologue, y) if array)
        return y.values.view(x.dtype).copy()

    return ended_error(problem, run, (made, weight))


def _filled(values: np.ndarray, storage: Any) -> HostArray:
    array = empty(values.shape, storage)
    array.values[...] = values.view(storage)
    return array
