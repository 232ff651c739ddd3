"""The time of each kernel of a launch: its graph replayed up to that kernel, less the replay up to the one before."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

import cupy
import numpy as np
from cuda.bindings import driver

from conv_advisor.data.errors import LaunchFailed
from conv_advisor.kernels.cuda.border import translated
from conv_advisor.kernels.cuda.chain import in_order
from conv_advisor.kernels.runner import Operands
from conv_advisor.kernels.variant import Launch

_REPLAYS: Final = 20
_LEAST_REGION_MS: Final = 0.25
_MOST_LAUNCHES: Final = 256


@dataclass(frozen=True)
class Stage:
    """One node of a launch's graph.

    Parameters
    ----------
    name : str
        The kernel's, as it was compiled; ``memcpy`` and ``memset`` for the others.
    time_ms : float
        Time of the launch up to and including this node, less its time up to the node before.
    blocks, threads, registers : int
        Blocks of the launch, threads of a block, registers of a thread; 0 for a node that is no kernel.
    occupancy : float
        Share of a multiprocessor's warps that its blocks may fill, 0 to 1.
    """

    name: str
    time_ms: float
    blocks: int = 0
    threads: int = 0
    registers: int = 0
    occupancy: float = 0.0


def stages(launch: Launch, operands: Operands, launch_ms: float) -> list[Stage]:
    """Time each node of a launch, in the order in which they run.

    Parameters
    ----------
    launch : Launch
    operands : Operands
        x, weight and y of its problem.
    launch_ms : float
        Approximate time of the whole launch; graphs are made long enough to be timed.

    Returns
    -------
    stages : list of Stage
        Their times add up to the launch's own; none for a launch that enqueues nothing.

    Raises
    ------
    NotSupported
        Its nodes do not form a chain: cuDNN's FFT variants run on several streams.

    Notes
    -----
    A node runs after all nodes that it depends on, so its inputs are complete. cuGraphNodeSetEnabled leaves a disabled
    node in the graph as an empty one (CUDA driver API, graph management).
    """
    count = max(1, min(_MOST_LAUNCHES, round(_LEAST_REGION_MS / max(launch_ms, 1e-3))))
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream, translated():
        graph = _captured(launch, operands, stream, count)
        try:
            nodes = _in_order(graph)
            if not nodes:
                return []
            length = len(nodes) // count
            executable = _answer_of(driver.cuGraphInstantiate(graph, 0))
            try:
                upto = [_replayed_ms(_cut(nodes, executable, length, place), stream) for place in range(length + 1)]
            finally:
                _answer_of(driver.cuGraphExecDestroy(executable))
            times = [max(0.0, longer - shorter) / count for shorter, longer in pairwise(upto)]
            return [_described(node, time_ms) for node, time_ms in zip(nodes[:length], times, strict=True)]
        finally:
            _answer_of(driver.cuGraphDestroy(graph))


def _captured(launch: Launch, operands: Operands, stream: Any, count: int) -> Any:
    """A graph of ``count`` launches."""
    handle = driver.CUstream(stream.ptr)
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    _answer_of(driver.cuStreamBeginCapture(handle, mode))
    try:
        for _ in range(count):
            launch.run(*operands.tensors)
    finally:
        graph = _answer_of(driver.cuStreamEndCapture(handle))
    return graph


def _in_order(graph: Any) -> list[Any]:
    """The nodes of a graph that is one chain, from first to last.

    Raises
    ------
    NotSupported
    """
    _, n_nodes = _answer_of(driver.cuGraphGetNodes(graph))
    nodes = _answer_of(driver.cuGraphGetNodes(graph, n_nodes))[0] if n_nodes else ()
    *_, n_edges = _answer_of(driver.cuGraphGetEdges(graph))
    begins, ends, *_ = _answer_of(driver.cuGraphGetEdges(graph, n_edges)) if n_edges else ((), ())
    node_of_address = {int(node): node for node in nodes}
    edges = list(zip(map(int, begins), map(int, ends), strict=True))
    return [node_of_address[address] for address in in_order(list(node_of_address), edges)]


def _cut(nodes: list[Any], executable: Any, length: int, end: int) -> Any:
    """The graph with the first nodes of each launch switched on, and the others off."""
    for index, node in enumerate(nodes):
        _answer_of(driver.cuGraphNodeSetEnabled(executable, node, int(index % length < end)))
    return executable


def _replayed_ms(executable: Any, stream: Any) -> float:
    """Median time of a replay; the first two are not counted."""
    handle = driver.CUstream(stream.ptr)
    events = [cupy.cuda.Event() for _ in range(_REPLAYS + 3)]
    for event in events:
        _answer_of(driver.cuGraphLaunch(executable, handle))
        event.record(stream)
    events[-1].synchronize()
    return float(np.median([cupy.cuda.get_elapsed_time(start, end) for start, end in pairwise(events)][2:]))


def _described(node: Any, time_ms: float) -> Stage:
    kind = _answer_of(driver.cuGraphNodeGetType(node))
    if kind != driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL:
        return Stage(kind.name.rpartition("_")[2].lower(), time_ms)
    parameters = _answer_of(driver.cuGraphKernelNodeGetParams(node))
    function = parameters.func if int(parameters.func) else _answer_of(driver.cuKernelGetFunction(parameters.kern))
    name = _answer_of(driver.cuFuncGetName(function)).decode()
    threads = prod((parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ))
    registers = _answer_of(driver.cuFuncGetAttribute(driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NUM_REGS, function))
    resident = _answer_of(
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, threads, parameters.sharedMemBytes)
    )
    most = cupy.cuda.Device().attributes["MaxThreadsPerMultiProcessor"]
    blocks = prod((parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ))
    return Stage(name, time_ms, blocks, threads, registers, resident * threads / most)


def _answer_of(answer: tuple[Any, ...]) -> Any:
    """The values that a call of the driver returned.

    Raises
    ------
    LaunchFailed
        The call failed; the message names the driver's error.
    """
    status, *values = answer
    if status != driver.CUresult.CUDA_SUCCESS:
        raise LaunchFailed(f"the driver answered {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
