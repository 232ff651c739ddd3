"""Training several trees in parallel processes; the result does not depend on their number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import repeat

from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.models.costs import Costs
from conv_advisor.models.training.grow import Orders
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.threads import processes
from conv_advisor.models.training.train import MOST_THREADS, fit_beside
from conv_advisor.models.tree.file import TreeModel


def fit_each(
    parts: Sequence[Costs],
    device: Device,
    *,
    asked: Sequence[Sequence[ConvProblem]],
    seed: int = 0,
    options: Options | None = None,
    jobs: int | None = None,
) -> Iterator[tuple[TreeModel, Orders]]:
    """A tree of each part and what its teacher says, in their order, each as soon as it and those before it are there.

    Parameters
    ----------
    parts : sequence of Costs
    asked : sequence of sequence of ConvProblem
        What the teacher of each part is asked, as in `models.training.train.fit_beside`.
    device, seed, options
        As in `models.training.train.fit`.
    jobs : int, optional
        Processes at once, or threads where there are fewer parts; by default one a core that this process may use.

    Raises
    ------
    InvalidInput
        Fewer than one job.
    NotEnoughData
    """
    jobs = available_cores() if jobs is None else jobs
    if jobs < 1:
        raise InvalidInput("jobs", jobs, "an integer of at least 1")
    n_threads = max(1, min(MOST_THREADS, jobs // max(1, len(parts))))
    fit_one = partial(fit_beside, seed=seed, options=options, n_threads=n_threads)
    with processes(min(jobs, len(parts))) as process_map:
        yield from process_map(fit_one, parts, repeat(device), asked)
