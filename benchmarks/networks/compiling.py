"""A process that compiles cells beside others, keeps what it compiled, and times it once all are still."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Any, Final
from unittest.mock import patch

import torch
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from benchmarks.networks.cells import ALL, GIVEN, OURS, Cell, Row, layers_of
from benchmarks.networks.running import (
    error_of,
    images,
    in_a_benchmarking_thread,
    in_float64,
    in_turns,
    network_of,
    outcomes,
    replayed_ms,
    set_precision,
)
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES
from conv_advisor.torch import backend
from conv_advisor.torch.calls.timing import Trial
from conv_advisor.torch.choosing import candidates, gpu

_EVERY: Final = 1000
"""Variants to measure: more than there are."""
_RECOMPILES: Final = 1000
"""More than there are cells: networks of one kind are one code to Dynamo, which gives it up after a few graphs."""


@dataclass
class _Held:
    """One cell, ready to be timed."""

    row: Row
    x: Any
    calls: dict[str, Callable[[Any], Any]] = field(default_factory=dict)


_held: Final[dict[Cell, _Held]] = {}


def begin(alone: AbstractContextManager[Any], threads: int) -> None:
    """Get a process ready.

    Parameters
    ----------
    alone : context manager
        A lock that all such processes share: its holder times variants or Triton's kernels alone on the GPU.
    threads : int
        In how many processes Inductor compiles for this one.
    """
    torch._inductor.config.compile_threads = threads
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = _RECOMPILES
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    setattr(gpu, "Trial", partial(_Alone, alone, Trial))  # noqa: B010 - it is a class, and this a stand-in
    autotune = CachingAutotuner.benchmark_all_configs

    def autotune_alone(*arguments: Any, **options: Any) -> Any:
        with alone:
            return autotune(*arguments, **options)

    CachingAutotuner.benchmark_all_configs = autotune_alone


class _Alone:
    """A trial that waits for its turn."""

    def __init__(self, alone: AbstractContextManager[Any], trial: Callable[..., Any], *arguments: Any) -> None:
        self._alone, self._trial = alone, trial(*arguments)

    def __enter__(self) -> Any:
        self._alone.__enter__()
        try:
            return self._trial.__enter__()
        except BaseException:
            self._alone.__exit__(None, None, None)
            raise

    def __exit__(self, *raised: Any) -> None:
        try:
            self._trial.__exit__(*raised)
        finally:
            self._alone.__exit__(*raised)


def prepare(cell: Cell, modes: tuple[str, ...], options: Mapping[str, Any], folder: str) -> None:
    """Compile one cell in all modes, and keep it.

    Parameters
    ----------
    cell : Cell
    modes : tuple of str
        Those of PyTorch, and `ALL` and `GIVEN` where they are to run; ours always does.
    options : mapping
        For our backend.
    folder : str
        Where each process keeps choices of its own.
    """
    begin_s = time.monotonic()
    set_precision(cell)
    network, x = network_of(cell), images(cell)
    held = _Held(Row(cell, device=f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"), x)
    with torch.no_grad():
        expected = in_float64(network, x)
        held.row = replace(held.row, torch_error=error_of(network(x), expected))
        held.calls |= {mode: network for mode in ("eager", "benchmark") if mode in modes}
        with outcomes() as messages:
            y = _compile(held, OURS, network, backend=backend, options=_ours(options, f"{folder}/plans"))
        if y is not None:
            held.row = Row(**(held.row.__dict__ | layers_of(messages) | {"error": error_of(y, expected)}))
        if GIVEN in modes:
            apart = dict(options, layouts=False)
            _compile(held, GIVEN, network, backend=backend, options=_ours(apart, f"{folder}/plans"))
        if ALL in modes:
            # One byte more gives these plans names of their own, or the two would run each other's choices.
            every = dict(options, measure=_EVERY, max_workspace_bytes=DEFAULT_WORKSPACE_LIMIT_BYTES + 1)
            with patch.object(candidates, "MOST_SLOWDOWN", inf):
                _compile(held, ALL, network, backend=backend, options=_ours(every, f"{folder}/all"))
        if "compile" in modes:
            _compile(held, "compile", network)
        if "max-autotune" in modes:
            _compile(held, "max-autotune", network, mode="max-autotune-no-cudagraphs")
    torch.cuda.empty_cache()
    _held[cell] = held
    taken_s = time.monotonic() - begin_s
    print(f"    {cell.network} {cell.precision} batch {cell.batch} compiled in {taken_s:.0f} s", flush=True)


def _ours(options: Mapping[str, Any], path: str) -> dict[str, Any]:
    return {**options, "plan_file": f"{path}-{os.getpid()}.json"}


def _compile(held: _Held, mode: str, network: Any, /, **options: Any) -> Any:
    """The output of a mode; None where it fails, with the reason noted in the row."""
    try:
        call = torch.compile(network, dynamic=False, **options)  # this process compiled it for other batches too
        y = call(held.x)
        torch.cuda.synchronize()
    except Exception as error:  # one mode of one network must not end the run
        _note(held.row, mode, error)
        return None
    held.calls[mode] = call
    return y


def _note(row: Row, mode: str, error: Exception) -> None:
    row.failures[mode] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def timed(cell: Cell) -> Row:
    """Time a cell that was prepared, and let go of it."""
    held = _held.pop(cell)
    set_precision(cell)
    with torch.no_grad():
        if "benchmark" in held.calls:
            benchmark = {"benchmark": held.calls.pop("benchmark")}
            in_a_benchmarking_thread(lambda: _time(held, benchmark))
        _time(held, held.calls)
    return held.row


def _time(held: _Held, modes: Mapping[str, Callable[[Any], Any]]) -> None:
    """Fill a row with the times of some modes, which take turns on the wall."""
    ran: dict[str, Callable[[], Any]] = {}
    for mode, function in modes.items():
        call = partial(function, held.x)
        try:
            with torch.no_grad():
                held.row.device_ms[mode] = replayed_ms(call)
        except Exception as error:  # as above
            _note(held.row, mode, error)
        else:
            ran[mode] = call
    with torch.no_grad():
        for mode, (wall_ms, _) in in_turns(ran, torch.cuda.synchronize).items():
            held.row.wall_ms[mode] = wall_ms
