"""Stages timed on a GPU: which ones, and a process for them that may be brought down."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import cache
from multiprocessing import get_context
from typing import Any, Final

from benchmarks.stages.papers import PRINTED
from conv_advisor.data.errors import LaunchFailed, RunError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Launch

POST_SIZE: Final = 512
POST_FILTERS: Final = (3, 5, 7)
DIRECT: Final = ("cuda.direct_naive", "cuda.direct_constant", "cuda.direct_tiled_halo", "cuda.direct_tiled_cached")
STUDIED: Final = ("cuda.cuconv", "cuda.implicit_gemm", "cudnn.implicit_gemm", "cudnn.implicit_precomp_gemm")
"""What is timed on each of cuConv's layers besides what its tables list."""


def timed(name: str) -> dict[str, Any]:
    """What `benchmarks.stages.tables` shows: the device, and a row a variant and layer.

    Raises
    ------
    UnknownDevice
    """
    rows: list[dict[str, Any]] = []
    waiting = deque(dict.fromkeys(_asked_of()))
    while waiting:
        # A kernel that brings its process down costs its own row: the next process goes on with those behind it.
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            try:
                facts = pool.submit(_facts, name).result()
                while waiting:
                    rows.append(pool.submit(_row, name, waiting[0]).result())
                    waiting.popleft()
            except LaunchFailed as error:
                rows.append(_named(*waiting.popleft()) | {"error": str(error)})
    return {**facts, "rows": rows}


@cache
def _runner(name: str) -> Any:
    return open_runner(name)


def _facts(name: str) -> dict[str, Any]:
    return {"device": asdict(_runner(name).device), "floor_ms": _runner(name).floor_ms}


Asked = tuple[str, ConvProblem, str, tuple[tuple[str, int], ...]]
"""The part of the report, the problem, the variant, and what is forced on its launcher."""


def _asked_of() -> Iterator[Asked]:
    for printed in PRINTED:
        yield "papers", printed.problem, printed.variant, ()
    layers = list(dict.fromkeys(printed.problem for printed in PRINTED if printed.paper == "cuConv"))
    for problem in layers:
        for variant in STUDIED:
            yield "papers", problem, variant, ()
        for rows_a_block in (1, 4, 16):
            yield "rows", problem, "cuda.cuconv", (("filters", rows_a_block),)
    for size in POST_FILTERS:
        problem = ConvProblem.parse(f"{POST_SIZE}-1-{size}-1-1")
        for variant in DIRECT:
            for is_fixed in (0, 1):
                yield "post", problem, variant, (("is_size_fixed", is_fixed),)


def _named(part: str, problem: ConvProblem, variant: str, forced: tuple[tuple[str, int], ...]) -> dict[str, Any]:
    labels = {"part": part, "layer": problem.short, "dtype": str(problem.dtype), "variant": variant}
    return labels | {"forced": dict(forced)}


def _row(name: str, case: Asked) -> dict[str, Any]:
    _, problem, variant, forced = case
    try:
        return _named(*case) | _stages(_runner(name), problem, variant, dict(forced))
    except LaunchFailed:
        raise
    except RunError as error:
        return _named(*case) | {"error": str(error)}


def _stages(runner: Any, problem: ConvProblem, variant: str, forced: dict[str, int]) -> dict[str, Any]:
    """Verify one variant, and time it whole and kernel by kernel."""
    from conv_advisor.kernels.cuda.stages import stages

    launch = _launch(runner, problem, variant, forced)
    operands = runner.make_operands(problem, 0)
    first = runner.first_run(problem, launch, operands)
    if not first.max_error <= tolerance(problem):
        return {"error": f"wrong by {first.max_error}"}
    timings = stages(launch, operands, first.launch_ms)
    runner.release()
    return {"stages": [asdict(stage) for stage in timings], "error_relative": first.max_error}


def _launch(runner: Any, problem: ConvProblem, variant: str, forced: dict[str, int]) -> Launch:
    if not forced:
        launch: Launch = runner.prepare(catalog.get(variant), problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
        return launch
    from conv_advisor.kernels.cuda.cuconv import launch as cuconv
    from conv_advisor.kernels.cuda.direct import launch as direct

    if variant == "cuda.cuconv":
        return cuconv.prepare(problem, runner.device, DEFAULT_WORKSPACE_LIMIT_BYTES, **forced)
    prepare = getattr(direct, f"prepare_{variant.removeprefix('cuda.direct_')}")
    forced_launch: Launch = prepare(problem, runner.device, 0, **forced)
    return forced_launch
