"""One CUDA device as a runner: launches are timed by replaying a graph of them between events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import cupy
import ml_dtypes
import numpy as np
import pynvml

from conv_advisor.data.errors import NotSupported, UnknownDevice
from conv_advisor.data.measurement import Device, L2State, Pick
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels import comparison, reference
from conv_advisor.kernels.cuda.border import device_count, translated
from conv_advisor.kernels.cuda.checks import Checks, linear_offsets, storage_type
from conv_advisor.kernels.cuda.family import CudaVariant
from conv_advisor.kernels.cuda.prepare import prepare as prepare_cuda
from conv_advisor.kernels.cudnn import graph, legacy
from conv_advisor.kernels.cudnn.library import version as cudnn_version
from conv_advisor.kernels.cudnn.variants import graph_engine_variant
from conv_advisor.kernels.device import cuda_device
from conv_advisor.kernels.exclusive import Exclusive
from conv_advisor.kernels.rotation import operand_sets
from conv_advisor.kernels.runner import FirstRun, Operands, Samples
from conv_advisor.kernels.stopping import StopRule, launches_per_region
from conv_advisor.kernels.variant import Backend, Launch, Variant

LEAST_REGION_MS: Final = 0.25
"""Above the 0.2 ms that a region must have, since the estimate that sizes it is rough."""
MOST_LAUNCHES: Final = 1024
SLOW_LAUNCH_MS: Final = 5.0
"""Above this a launch is long enough to need no warm-up replay of its own."""
LONG_LAUNCH_MS: Final = 250.0
"""A first launch this long is not repeated: the host is seldom the cause, and a second one would cost as much."""


class CudaRunner:
    """Runs and times launches on one CUDA device, on a stream of its own.

    Other processes with a runner of the same device prepare launches at the same time, but launch in turn.
    """

    def __init__(self, ordinal: int) -> None:
        if not 0 <= ordinal < device_count():
            raise UnknownDevice(f"cuda:{ordinal}", [f"cuda:{index}" for index in range(device_count())])
        with translated():
            self._cuda = cupy.cuda.Device(ordinal)
            self._cuda.use()
            self._stream = cupy.cuda.Stream(non_blocking=True)
        pynvml.nvmlInit()
        self._nvml = pynvml.nvmlDeviceGetHandleByPciBusId(self._cuda.pci_bus_id)
        self._alone = Exclusive(self._cuda.pci_bus_id)
        self._checks = Checks()
        self._turns: list[Operands] = []

    @cached_property
    def device(self) -> Device:
        """The fingerprint of the device."""
        properties = cupy.cuda.runtime.getDeviceProperties(self._cuda.id)
        runtime = cupy.cuda.runtime.runtimeGetVersion()
        versions = {
            "cuda": f"{runtime // 1000}.{runtime % 1000 // 10}",
            "cupy": cupy.__version__,
            "cudnn": cudnn_version(),
        }
        driver = pynvml.nvmlSystemGetDriverVersion()
        clock = pynvml.nvmlDeviceGetMaxClockInfo(self._nvml, pynvml.NVML_CLOCK_SM)
        return cuda_device(properties, driver, clock, versions)

    @cached_property
    def floor_ms(self) -> float:
        """Time of an empty kernel in a replayed graph, ms."""
        launch = Launch(lambda _x, _weight, _y: self._checks.nothing())
        with self._alone, self._stream, translated():
            self._checks.nothing()
            samples = self._replay(launch, [_NOTHING], 0.001, StopRule(max_noise=0.001))
        return float(np.median(samples))

    def clock_mhz(self) -> int:
        """The SM clock now."""
        return int(pynvml.nvmlDeviceGetClockInfo(self._nvml, pynvml.NVML_CLOCK_SM))

    def make_operands(self, problem: ConvProblem, seed: int) -> Operands:
        """Random operands, uniform in (-1, 1), made on the device."""
        with self._alone, self._stream, translated():
            inputs = self._random(problem, seed)
            return self._with_reference(problem, inputs, comparison.sample_outputs(problem), is_finite=True)

    def upload(self, problem: ConvProblem, inputs: Mapping[str, np.ndarray]) -> Operands:
        """Operands from host arrays in the problem's memory order, keyed by their names in its `shapes`."""
        outputs = comparison.given_outputs(problem, inputs["x"], inputs["weight"])
        storage = storage_type(problem.dtype)
        with self._alone, self._stream, translated():
            on_device = {
                name: cupy.asarray(np.ascontiguousarray(array).view(storage)) for name, array in inputs.items()
            }
            return self._with_reference(problem, on_device, outputs, is_finite=False)

    def download(self, problem: ConvProblem, operands: Operands) -> np.ndarray:
        """The output as a host array; bfloat16 as ``ml_dtypes.bfloat16``."""
        with self._stream, translated():
            y: np.ndarray = cupy.asnumpy(operands.y)
        return y.view(ml_dtypes.bfloat16) if problem.dtype is DType.BFLOAT16 else y

    def prepare(
        self,
        variant: Variant,
        problem: ConvProblem,
        workspace_limit_bytes: int,
        plan: Mapping[str, Any] | None = None,
    ) -> Launch:
        """Compile and allocate; with a plan, exactly that plan of a graph engine."""
        with self._stream, translated():
            if isinstance(variant, CudaVariant):
                return prepare_cuda(variant, problem, self.device, workspace_limit_bytes)
            if variant.backend is Backend.CUDNN_LEGACY:
                return legacy.prepare(variant, problem, workspace_limit_bytes)
            if plan:
                return graph.prepare_offered(problem, plan, workspace_limit_bytes)
            return graph.prepare(variant, problem, workspace_limit_bytes)

    def plans(self, problem: ConvProblem) -> Sequence[tuple[str, dict[str, Any]]]:
        """Every plan that heuristics A, B and FALLBACK of cuDNN's graph API offer."""
        with self._stream, translated():
            engines = graph.engines(problem)
        return [(graph_engine_variant(ref.engine).id, ref.to_json()) for refs in engines.values() for ref in refs]

    def first_run(self, problem: ConvProblem, launch: Launch, operands: Operands) -> FirstRun:
        """Poison y, launch, compare; shorter launches are repeated, with the code loaded, to estimate the time."""
        with self._alone, self._stream, translated():
            self._checks.poison(operands.y, problem.dtype)
            launch_ms = self._launch_ms(launch, operands)
            error = self._error_at(problem, operands, operands.outputs, operands.reference)
            is_compared = len(operands.outputs) == operands.y.size
            if not is_compared and not self._checks.is_finite(operands.y, problem.dtype):
                error = np.inf if operands.is_finite else max(error, self._error_of_infinite(problem, operands))
            # The least of several times: loading code, or a host busy for a moment, must not make it look hopeless.
            if launch_ms < LONG_LAUNCH_MS:
                launch_ms = min(launch_ms, self._launch_ms(launch, operands))
            if launch_ms < SLOW_LAUNCH_MS:
                launch_ms = min(launch_ms, *(self._launch_ms(launch, operands) for _ in range(2)))
        return FirstRun(float(error), launch_ms)

    def sample(
        self, problem: ConvProblem, launch: Launch, operands: Operands, launch_ms: float, rule: StopRule, l2: L2State
    ) -> Samples:
        """Time replays of a graph of launches until the stop rule is met."""
        with self._alone, self._stream, translated():
            sets = self._operand_sets(problem, operands, l2)
            clock_start = self.clock_mhz()
            samples = self._replay(launch, sets, launch_ms, rule)
            return Samples(tuple(samples), clock_start, self.clock_mhz())

    def picks(self, problem: ConvProblem, workspace_limit_bytes: int) -> Sequence[Pick]:
        """The choices of cuDNN's heuristics: that of the legacy API, and A and B of the graph API."""
        choices = []
        with self._stream, translated():
            variant = legacy.heuristic_pick(problem, workspace_limit_bytes)
            if variant is not None:
                choices.append(Pick(problem, self.device, "cudnn.heuristic_v7", variant))
            for heuristic in ("a", "b"):
                choice = graph.heuristic_pick(problem, heuristic, workspace_limit_bytes)
                if choice is not None:
                    choices.append(Pick(problem, self.device, f"cudnn.graph.heuristic_{heuristic}", *choice))
        return choices

    def release(self) -> None:
        """Give memory back to the device once the cache holds a quarter of it."""
        self._turns = []
        pool = cupy.get_default_memory_pool()
        if pool.total_bytes() > self.device.memory_bytes // 4:
            pool.free_all_blocks()

    def _error_at(self, problem: ConvProblem, operands: Operands, outputs: np.ndarray, expected: np.ndarray) -> float:
        """`comparison.max_error` at these outputs, in the dtype of y, whose range decides what is infinite."""
        compared = self._at(problem, operands.y, outputs)
        return comparison.max_error(compared.astype(reference.HOST_DTYPE[problem.dtype]), expected, operands.scale)

    def _at(self, problem: ConvProblem, tensor: Any, outputs: np.ndarray) -> np.ndarray:
        """The elements at these outputs of a tensor in y's shape, as float64 on the host."""
        return self._checks.gather(problem, tensor, cupy.asarray(linear_offsets(problem, outputs)))

    def _expected_at(
        self, problem: ConvProblem, inputs: Mapping[str, Any], outputs: np.ndarray
    ) -> tuple[np.ndarray, float]:
        """y in float64 at these outputs, its epilogue by the host, and the scale that `reference.ended` gives."""
        sums = self._checks.reference_at(problem, inputs["x"], inputs["weight"], outputs)
        if not problem.epilogue:
            return sums, 0.0
        bias, residual = inputs.get("bias"), inputs.get("residual")
        if bias is not None:
            bias = cupy.asnumpy(bias).view(reference.HOST_DTYPE[problem.dtype])[outputs[:, 1]]
        if residual is not None:
            residual = self._at(problem, residual, outputs)
        return reference.ended(problem.epilogue, sums, bias, residual)

    def _error_of_infinite(self, problem: ConvProblem, operands: Operands) -> float:
        """The error at the first `comparison.SAMPLES` non-finite outputs: infinite where one should be finite."""
        places = comparison.not_finite(problem, self.download(problem, operands))
        inputs = {name: getattr(operands, name) for name in problem.shapes}
        expected, _ = self._expected_at(problem, inputs, places)
        return self._error_at(problem, operands, places, expected)

    def _operand_sets(self, problem: ConvProblem, operands: Operands, l2: L2State) -> list[Operands]:
        """The operand sets that launches rotate over; kept until `release`, since making a thousand takes long."""
        count = operand_sets(problem, l2, self.device.l2_bytes)
        if count == 1:
            return [operands]
        if len(self._turns) != count or self._turns[0] is not operands:
            self._turns = [operands]
            for seed in range(1, count):
                turn = replace(operands, y=cupy.empty_like(operands.y), **self._random(problem, seed))
                self._turns.append(turn)
        return self._turns

    def _random(self, problem: ConvProblem, seed: int) -> dict[str, Any]:
        storage = storage_type(problem.dtype)
        arrays = {}
        for index, (name, shape) in enumerate(problem.shapes.items()):
            arrays[name] = cupy.empty(shape, storage)
            # x and weight have the seeds 2 * seed and 2 * seed + 1; bias and residual have seeds that those never have.
            self._checks.fill(arrays[name], problem.dtype, 2 * seed + index % 2 + (index // 2 << 40))
        return arrays

    def _with_reference(
        self, problem: ConvProblem, inputs: Mapping[str, Any], outputs: np.ndarray, *, is_finite: bool
    ) -> Operands:
        expected, scale = self._expected_at(problem, inputs, outputs)
        y = cupy.empty(problem.y_shape, storage_type(problem.dtype))
        return Operands(y=y, outputs=outputs, reference=expected, is_finite=is_finite, scale=scale, **inputs)

    def _launch_ms(self, launch: Launch, operands: Operands) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        launch.run(*operands.tensors)
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end))

    def _replay(self, launch: Launch, sets: Sequence[Operands], launch_ms: float, rule: StopRule) -> list[float]:
        launches = max(len(sets), launches_per_region(launch_ms, LEAST_REGION_MS, MOST_LAUNCHES))
        captured = self._capture(launch, sets, launches)
        if launch_ms < SLOW_LAUNCH_MS:
            region_ms = self._regions_ms(captured, 1)[0]
            if region_ms < 0.8 * LEAST_REGION_MS and launches < MOST_LAUNCHES:
                launches = max(launches, launches_per_region(region_ms / launches, LEAST_REGION_MS, MOST_LAUNCHES))
                captured = self._capture(launch, sets, launches)
                self._regions_ms(captured, 1)
        samples: list[float] = []
        while not rule.is_done(samples, sum(samples) * launches):
            count = rule.next_samples(samples, (samples[-1] if samples else launch_ms) * launches)
            samples += [region / launches for region in self._regions_ms(captured, count)]
        return samples

    def _capture(self, launch: Launch, sets: Sequence[Operands], launches: int) -> Any:
        self._stream.begin_capture()
        try:
            for index in range(launches):
                operands = sets[index % len(sets)]
                launch.run(*operands.tensors)
        except BaseException:
            self._abandon_capture()
            raise
        try:
            captured = self._stream.end_capture()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            if error.status in _CAPTURE_ERRORS:
                raise NotSupported(f"cannot be captured in a graph: {error}") from error
            raise
        captured.upload(self._stream)
        return captured

    def _abandon_capture(self) -> None:
        try:
            self._stream.end_capture()
        except cupy.cuda.runtime.CUDARuntimeError:
            return

    def _regions_ms(self, captured: Any, count: int) -> list[float]:
        events = [cupy.cuda.Event() for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            captured.launch(self._stream)
            event.record()
        events[-1].synchronize()
        return [float(cupy.cuda.get_elapsed_time(start, end)) for start, end in pairwise(events)]


_CAPTURE_ERRORS: Final = range(900, 910)
"""cudaErrorStreamCaptureUnsupported and its kin; none of them harms the context."""
_NOTHING: Final = Operands(None, None, None, np.empty((0, 4), np.int64), np.empty(0))
