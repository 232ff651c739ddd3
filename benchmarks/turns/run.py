"""A run over many layers in a worker process: what brings it down costs a restart, and is left out at last."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

from benchmarks.options import say
from benchmarks.turns.layer import OPERANDS
from conv_advisor.app.sweep.attempt import outcome_of
from conv_advisor.app.workers import tasks
from conv_advisor.app.workers.engine import Engine
from conv_advisor.data.errors import ConvAdvisorError, LaunchFailed, WorkerError
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.problem import ConvProblem

START_S: Final = 180.0
"""Longest start of a worker: CuPy, both cuDNN APIs and PyTorch are loaded."""
PROGRESS_S: Final = 10.0
MOST_RESTARTS: Final = 4
"""How often the worker may start again for one layer."""
MOST_STRIKES: Final = 3
"""Workers that a variant, or a mode of PyTorch, may bring down before it is left out of the rest."""
MOST_LOST: Final = 3
"""Layers in a row whose operands bring the worker down before the device counts as lost."""


class OfLayer(Protocol):
    """What is to be done for one layer."""

    @property
    def problem(self) -> ConvProblem:
        """The layer."""
        ...


Order = TypeVar("Order", bound=OfLayer)
Row = TypeVar("Row")


@dataclass
class Run(Generic[Order, Row]):
    """A device whose layers are measured by a task in its worker.

    Parameters
    ----------
    engine : Engine
    task : callable (*arguments, order, excluded) -> list of Row
        Excluded are the names of what brought a worker down.
    arguments : tuple
        Passed before `order` and `excluded`.
    deadline_s : float
        For one layer.
    """

    engine: Engine
    task: Callable[..., list[Row]]
    arguments: tuple[Any, ...]
    deadline_s: float
    strikes: Counter[str] = field(default_factory=Counter)
    n_lost: int = 0
    """Layers in a row whose operands brought the worker down."""
    _is_open: bool = False

    def open(self) -> Device:
        """Have the worker open its device, which takes longer than a layer.

        Raises
        ------
        ConvAdvisorError
        """
        device = self.engine.run(tasks.describe_device, deadline_s=START_S)
        self._is_open = True
        return device

    @property
    def is_lost(self) -> bool:
        """Whether the device cannot be used any more."""
        return self.n_lost >= MOST_LOST

    def measure(self, order: Order) -> tuple[list[Row], dict[str, str]]:
        """The rows of one layer; what brings the worker down is noted, and the rest tried again.

        Returns
        -------
        rows : list of Row
            There are none where nothing of the layer could be measured.
        failures : dict of str to str
            What brought a worker down, here or so often that it was left out, by name.
        """
        failures: dict[str, str] = {}
        banned = {name for name, count in self.strikes.items() if count >= MOST_STRIKES}
        left_out = dict.fromkeys(banned, f"{Outcome.CRASHED}: left out after {MOST_STRIKES} workers")
        in_hand = [""]
        for _ in range(MOST_RESTARTS):
            in_hand[:] = [""]
            try:
                if not self._is_open:
                    self.open()
                in_hand[:] = [OPERANDS]
                rows = self.engine.run(
                    self.task,
                    *(*self.arguments, order, frozenset(banned | set(failures))),
                    deadline_s=self.deadline_s,
                    on_progress=lambda _fraction, name: in_hand.append(name),
                )
            except (LaunchFailed, WorkerError) as error:
                self._is_open, name = False, in_hand[-1]
                failures[name or OPERANDS] = f"{outcome_of(error)}: {error}"
                say(f"{order.problem.key}: {name or 'the start'}: {error}")
                if name in (OPERANDS, ""):
                    self.n_lost += 1
                    return [], failures
                self.strikes[name.split()[0]] += 1
            except ConvAdvisorError as error:
                return [], failures | {in_hand[-1]: f"{Outcome.CRASHED}: {error}"}
            else:
                self.n_lost = 0
                return rows, left_out | failures
        return [], failures


def paced(orders: Iterable[Order], total: int, time_limit_s: float) -> Iterator[Order]:
    """The orders one after the other until the time limit, saying how far the run is."""
    started = said_at = time.monotonic()
    for done, order in enumerate(orders):
        now = time.monotonic()
        if now - started >= time_limit_s:
            say(f"the time limit of {time_limit_s:g} s ends the run after {done} layers")
            return
        if now - said_at >= PROGRESS_S:
            said_at = now
            say(_progress(done, total, now - started))
        yield order
    say(_progress(total, total, time.monotonic() - started))


def _progress(done: int, total: int, elapsed_s: float) -> str:
    layer_s = elapsed_s / max(1, done)
    left_s = layer_s * (total - done)
    return f"{done} of {total} layers in {elapsed_s:.0f} s: {layer_s:.3f} s each, {left_s:.0f} s to go"
