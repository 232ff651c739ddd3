"""One cell on the GPU: a network by each of PyTorch's modes and by ours, all on the same weights and images."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
import torchvision

from benchmarks.networks.cells import ALL, OURS, Cell, Row, layers_of
from benchmarks.networks.unseen import MODELS, SHAPES
from conv_advisor.torch import backend, candidates
from conv_advisor.torch.gpu import SPENT

_DTYPES: Final = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_LEAST_REGION_MS: Final = 4.0
_SAMPLES: Final = 15
_WARMING: Final = 25
"""Regions that do not count: a device that idled while a compiler ran is slow at first."""
_WALL_CALLS: Final = 15
_WALL_ROUNDS: Final = 8
_WALL_PAUSE_S: Final = 0.25
"""Between rounds, of which the fastest counts: Inductor's compilers still start while a first network is timed."""
_EVERY: Final = 1000
"""Variants to measure: more than there are."""
_COMPARED: Final = 2
"""Images whose outputs are compared with float64."""


def run_cell(cell: Cell, modes: tuple[str, ...], options: dict[str, Any]) -> Row:
    """Everything that is printed of one cell.

    Parameters
    ----------
    cell : Cell
    modes : tuple of str
        Which of PyTorch's are run, and whether `ALL`; ours is in any case.
    options : dict
        For our backend, whose choices are this cell's alone.

    Notes
    -----
    Ours is compiled before PyTorch's modes, so that its first call finds nothing of theirs in Inductor's caches.
    """
    row = Row(cell, device=f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    run = partial(_run, row)
    set_precision(cell)
    network, x = network_of(cell), images(cell)
    with torch.no_grad():
        expected = _in_float64(network, x)
        row = _replace_errors(row, torch_error=_error(network(x), expected))
        with _outcomes() as outcomes, TemporaryDirectory() as folder:
            ours = dict(options, plan_file=f"{folder}/plans.json")
            call = run(OURS, lambda: torch.compile(network, backend=backend, options=ours))
        if call is not None:
            row = _replace_errors(row, error=_error(call(x), expected))
            run = partial(_run, row)
        if ALL in modes:
            with TemporaryDirectory() as folder, _trying_all():
                every = dict(options, measure=_EVERY, plan_file=f"{folder}/plans.json")
                run(ALL, lambda: torch.compile(network, backend=backend, options=every))
        if "eager" in modes:
            run("eager", lambda: network)
        if "benchmark" in modes:
            with _benchmarking():
                _in_a_thread(lambda: run("benchmark", lambda: network))
        if "compile" in modes:
            run("compile", lambda: torch.compile(network))
        if "max-autotune" in modes:
            run("max-autotune", lambda: torch.compile(network, mode="max-autotune-no-cudagraphs"))
    row = Row(**(row.__dict__ | layers_of(outcomes)))
    torch.compiler.reset()
    torch.cuda.empty_cache()
    return row


def set_precision(cell: Cell) -> None:
    """Let PyTorch round products of float32 to tf32 where the cell says so, and nowhere else."""
    is_tf32 = cell.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32


def network_of(cell: Cell) -> Any:
    """The network on the GPU, with random weights, in evaluation."""
    torch.manual_seed(0)
    if cell.network in MODELS:
        own = MODELS[cell.network]().eval()
        return own.to("cuda", _DTYPES[cell.precision], memory_format=_memory_format(cell))
    extra = {"aux_logits": False, "init_weights": False} if cell.network == "googlenet" else {}
    network = torchvision.models.get_model(cell.network, weights=None, **extra).eval()
    return network.to("cuda", _DTYPES[cell.precision], memory_format=_memory_format(cell))


def images(cell: Cell) -> Any:
    """Random images on the GPU."""
    torch.manual_seed(1)
    shape = SHAPES.get(cell.network, (3, 224, 224))
    random = torch.randn(cell.batch, *shape, device="cuda", dtype=_DTYPES[cell.precision])
    return random.contiguous(memory_format=_memory_format(cell))


def _memory_format(cell: Cell) -> Any:
    return torch.channels_last if cell.is_nhwc else torch.contiguous_format


def _in_float64(network: Any, x: Any) -> Any:
    dtype = x.dtype
    y = network.double()(x[:_COMPARED].double())
    network.to(dtype)
    return y


def _error(y: Any, expected: Any) -> float:
    return float((y[:_COMPARED].double() - expected).abs().max() / expected.abs().max())


def _run(row: Row, mode: str, make: Callable[[], Any]) -> Any:
    """Time a mode, and keep what it gives in the row; what fails is kept with its reason. The callable, if it ran."""
    x = images(row.cell)
    torch.compiler.reset()
    begin = time.perf_counter()
    try:
        with torch.no_grad():
            call = make()
            call(x)
            torch.cuda.synchronize()
            row.first_call_s[mode] = time.perf_counter() - begin
            row.device_ms[mode] = replayed_ms(lambda: call(x))
            row.wall_ms[mode] = _wall_ms(lambda: call(x))
    except Exception as error:  # one mode of one network must not end the run
        row.failures[mode] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return None
    return call


def replayed_ms(call: Callable[[], Any]) -> float:
    """Median device time of one call, ms: of a graph, replayed as often as fills a region."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replays = max(1, int(_LEAST_REGION_MS / max(_region_ms(graph.replay, 3), 1e-3)))
    for _ in range(_WARMING):
        _region_ms(graph.replay, replays)
    samples = [_region_ms(graph.replay, replays) for _ in range(_SAMPLES)]
    return median(samples)


def _region_ms(call: Callable[[], Any], count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / count


def _wall_ms(call: Callable[[], Any]) -> float:
    """The least median of the rounds; those end once two in turn agree."""
    medians: list[float] = []
    gc.collect()
    for _ in range(_WALL_ROUNDS):
        medians.append(_wall_round_ms(call))
        if len(medians) > 1 and medians[-1] > 0.95 * medians[-2]:
            break
        time.sleep(_WALL_PAUSE_S)
    return min(medians)


def _wall_round_ms(call: Callable[[], Any]) -> float:
    samples = []
    for _ in range(_WALL_CALLS):
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        samples.append(1000 * (time.perf_counter() - begin))
    return median(samples)


@contextmanager
def _trying_all() -> Iterator[None]:
    """Let no variant be left out for what it is predicted to take."""
    most, candidates.MOST_SLOWDOWN = candidates.MOST_SLOWDOWN, inf  # type: ignore[misc]  # for a while
    try:
        yield
    finally:
        candidates.MOST_SLOWDOWN = most  # type: ignore[misc]  # as it was


@contextmanager
def _benchmarking() -> Iterator[None]:
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = False


def _in_a_thread(work: Callable[[], Any]) -> None:
    """Run in a thread of its own: PyTorch keeps what it has chosen for a layer by thread."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@contextmanager
def _outcomes() -> Iterator[list[str]]:
    """What our backend says of each layer meanwhile."""
    said: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if record.levelno >= logging.WARNING:
                print("   ", message, flush=True)
            elif record.msg == "%s: %s":
                said.append(message)
            elif record.msg == SPENT:
                print(f"    {message}", flush=True)

    log, keeper = logging.getLogger("conv_advisor.torch"), Keeper()
    level = log.level
    log.addHandler(keeper)
    log.setLevel(logging.INFO)
    try:
        yield said
    finally:
        log.removeHandler(keeper)
        log.setLevel(level)


def _replace_errors(row: Row, **errors: float) -> Row:
    return Row(**(row.__dict__ | errors))
