"""Which problems are swept: so many and so even that none takes more than a hundredth of the whole."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from conv_advisor.app.sweep.sweep import sweep
from conv_advisor.app.workers.any_engine import AnyEngine
from conv_advisor.data import networks
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.store import Store
from conv_advisor.kernels.bench import BenchOptions

MOST_SHARE: Final = 0.01
"""Of the whole time, for the longest problem: more, and it may keep one device busy while others have nothing to do."""
MOST_LEFT_OUT: Final = 0.25
"""Share of the problems that may be left out as too long; where more would have to be, the time is too short."""
_LARGEST: Final = 0.25
"""Share of the layers, those of the most work, that are not even tried: they would only be timed to be left out."""
_FLOPS_PER_BYTE: Final = 15
"""Operations in float32 in the time of one byte, as of a GPU."""
_MARGIN: Final = 0.8
"""Of `MOST_SHARE`, where problems are chosen: later, with all code loaded, the whole takes less time."""
_SHUFFLE_SEED: Final = 0


def candidates(
    names: Iterable[str], batches: Sequence[int], dtypes: Iterable[DType], most: int | None = None
) -> list[ConvProblem]:
    """Layers of networks in each dtype but the largest, in a shuffled order that is always the same.

    Layers take turns at the batch sizes: a sweep gives all batch sizes of a layer to one worker, and such a unit of
    work would be several times as long.

    Parameters
    ----------
    names : iterable of str
    batches : sequence of int
    dtypes : iterable of DType
    most : int, optional
        How many at the most.
    """
    kinds, layouts = list(dtypes), [Layout.NCHW]
    layers = dict.fromkeys(
        problem for name in names for problem in networks.problems(name, batches=[1], dtypes=kinds, layouts=layouts)
    )
    order = list(layers)
    random.Random(_SHUFFLE_SEED).shuffle(order)  # noqa: S311 - nobody is to be surprised
    problems = [replace(problem, n=batches[place % len(batches)]) for place, problem in enumerate(order)]
    largest = set(sorted(problems, key=_work, reverse=True)[: int(_LARGEST * len(problems))])
    return [problem for problem in problems if problem not in largest][:most]


def _work(problem: ConvProblem) -> int:
    """What the time of a problem grows with."""
    return max(problem.flops, _FLOPS_PER_BYTE * problem.bytes)


def measured_s(
    store: Store,
    engines: Sequence[AnyEngine],
    problems: Sequence[ConvProblem],
    variant_ids: Sequence[str],
    options: BenchOptions,
    limit_s: float,
) -> dict[ConvProblem, float]:
    """Seconds that a problem takes a device, for those that all devices together measure in the time.

    Every device sweeps a part of them by itself, in their order: together they would begin with the longest.
    """

    def measure(place: int) -> dict[ConvProblem, float]:
        mine = problems[place :: len(engines)]
        begun: list[float] = []
        report = sweep(
            store,
            engines[place],
            mine,
            variant_ids,
            options=options,
            run_id=f"chosen-{place}",
            time_limit_s=limit_s,
            on_progress=lambda _done, _total, key: begun.append(time.monotonic()),
        )
        if not report.is_complete:  # else its last word was the end
            begun.append(time.monotonic())
        return {problem: end - begin for problem, begin, end in zip(mine, begun, begun[1:], strict=False)}

    with ThreadPoolExecutor(len(engines)) as threads:
        parts = list(threads.map(measure, range(len(engines))))
    return {problem: part[problem] for problem in problems for part in parts if problem in part}


def even(seconds: Mapping[ConvProblem, float]) -> list[ConvProblem]:
    """The problems without the longest, so that none of the others is over `MOST_SHARE` of their sum, less a margin.

    No more than `MOST_LEFT_OUT` of the problems are left out, even where that is not enough.
    """
    rising = sorted(seconds, key=seconds.__getitem__)
    least = len(rising) - int(MOST_LEFT_OUT * len(rising))
    total_s = sum(seconds.values())
    while len(rising) > least and seconds[rising[-1]] > _MARGIN * MOST_SHARE * total_s:
        total_s -= seconds[rising.pop()]
    kept = set(rising)
    return [problem for problem in seconds if problem in kept]
