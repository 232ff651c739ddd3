"""Networks on the GPU, and what a call takes: the device by a replayed graph, host and wall in turns."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median
from typing import Any, Final

import torch
import torchvision
from torch._inductor.async_compile import shutdown_compile_workers

from benchmarks.networks.cells import Cell
from benchmarks.networks.unseen import MODELS, SHAPES
from conv_advisor.torch.choosing.gpu import SPENT
from conv_advisor.torch.graph.layouts import LAID_OUT

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
_ROUNDS: Final = 5
_CALLS: Final = 30
_LEAST_CALLS: Final = 5
_ROUND_S: Final = 0.2
"""The length of a round of one way whose calls are too long for `_CALLS` of them."""
_COMPARED: Final = 2
"""Images whose outputs are compared with float64."""


def set_precision(cell: Cell) -> None:
    """Let PyTorch round products of float32 to tf32 where the cell says so, and nowhere else."""
    is_tf32 = cell.precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = is_tf32


def network_of(cell: Cell, seed: int = 0) -> Any:
    """The network on the GPU, in evaluation; its random weights are made there too."""
    torch.manual_seed(seed)
    with torch.device("cuda"):
        if cell.network in MODELS:
            network = MODELS[cell.network]()
        else:
            extra = {"aux_logits": False, "init_weights": False} if cell.network == "googlenet" else {}
            network = torchvision.models.get_model(cell.network, weights=None, **extra)
    return network.eval().to(_DTYPES[cell.precision], memory_format=_memory_format(cell))


def images(cell: Cell, seed: int = 0) -> Any:
    """Random images on the GPU."""
    torch.manual_seed(seed + 1)
    shape = SHAPES.get(cell.network, (3, 224, 224))
    random = torch.randn(cell.batch, *shape, device="cuda", dtype=_DTYPES[cell.precision])
    return random.contiguous(memory_format=_memory_format(cell))


def _memory_format(cell: Cell) -> Any:
    return torch.channels_last if cell.is_nhwc else torch.contiguous_format


def in_float64(network: Any, x: Any) -> Any:
    """A network's outputs for the first images in float64; afterwards its weights are as they were."""
    dtype = x.dtype
    y = network.double()(x[:_COMPARED].double())
    network.to(dtype)
    return y


def error_of(y: Any, expected: Any) -> float:
    """The largest difference of outputs from those of `in_float64`, over the largest of the latter."""
    return float((y[:_COMPARED].double() - expected).abs().max() / expected.abs().max())


def bias_of(y: Any, expected: Any) -> float:
    """The mean difference of outputs from those of `in_float64`, away from zero, as a share of their mean size."""
    return float(((y[:_COMPARED].double() - expected) * expected.sign()).sum() / expected.abs().sum())


def quieten() -> None:
    """End what compilers left running, and collect garbage now: the processes that compile for Inductor live on for a
    minute, and still start while a first network runs."""
    shutdown_compile_workers()
    gc.collect()
    gc.freeze()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def replayed_ms(call: Callable[[], Any]) -> float:
    """Median device time of one call, ms, by a graph that is replayed as often as fills a region."""
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


def in_turns(calls: Mapping[str, Callable[[], Any]], wait: Callable[[], None]) -> dict[str, tuple[float, float]]:
    """Wall and host milliseconds of a call, by name: the least median of the rounds, in which all take turns."""
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    counts = {}
    for name, call in calls.items():
        for _ in range(5):
            call()
        wait()
        wall_ms, _ = _sample(call, wait)
        counts[name] = min(_CALLS, max(_LEAST_CALLS, int(1000 * _ROUND_S / wall_ms)))
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            samples = [_sample(call, wait) for _ in range(counts[name])]
            rounds[name].append((median(wall for wall, _ in samples), median(host for _, host in samples)))
    return {name: (min(wall for wall, _ in taken), min(host for _, host in taken)) for name, taken in rounds.items()}


def _sample(call: Callable[[], Any], wait: Callable[[], None]) -> tuple[float, float]:
    begin = time.perf_counter()
    call()
    returned = time.perf_counter()
    wait()
    return 1000 * (time.perf_counter() - begin), 1000 * (returned - begin)


def in_a_benchmarking_thread(work: Callable[[], None]) -> None:
    """Run with ``benchmark=True``, in a thread of its own: PyTorch keeps what it has chosen for a layer by thread."""
    torch.backends.cudnn.benchmark = True
    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    finally:
        torch.backends.cudnn.benchmark = False


@contextmanager
def outcomes() -> Iterator[list[str]]:
    """Collect what our backend says of each layer meanwhile."""
    messages: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            if record.levelno >= logging.WARNING:
                print("   ", message, flush=True)
            elif record.msg == "%s: %s":
                messages.append(message)
            elif record.msg in (SPENT, LAID_OUT):
                print(f"    {message}", flush=True)

    log, keeper = logging.getLogger("conv_advisor.torch"), Keeper()
    level = log.level
    log.addHandler(keeper)
    log.setLevel(logging.INFO)
    try:
        yield messages
    finally:
        log.removeHandler(keeper)
        log.setLevel(level)
