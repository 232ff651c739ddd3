"""What a tree's domain is worth: trees that never saw one kind of layer, asked for exactly these, by their distance.

For each kind a small tree is trained on the shipped measurements of one dtype and layout without any layer of that
kind, and then asked for them. Printed is the slowdown against the oracle by the distance from what was trained on,
beside that of the single best variant. Needs no GPU; a few minutes.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from conv_advisor.data.measurement import Device
from conv_advisor.data.packing import attempts_in
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import TIMINGS
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.costs import Costs, device_of, from_table
from conv_advisor.models.evaluation.judging import Result, judge, single_best_order
from conv_advisor.models.training.options import Options
from conv_advisor.models.training.train import fit
from conv_advisor.models.tree.domain import domain_of

KINDS: Final[dict[str, Callable[[ConvProblem], bool]]] = {
    "filter 5": lambda problem: problem.r == 5,
    "filter 7 and above": lambda problem: problem.r >= 7,
    "stride 2": lambda problem: problem.stride_h == 2,
    "size 112 and above": lambda problem: problem.h >= 112,
    "size up to 8": lambda problem: problem.h <= 8,
    "depth 832 and above": lambda problem: problem.c >= 832,
    "depth up to 16": lambda problem: problem.c <= 16,
    "filters 768 and above": lambda problem: problem.k >= 768,
    "filters up to 24": lambda problem: problem.k <= 24,
    "3x3 of depth 256 at size 28": lambda problem: problem.r == 3 and problem.c >= 256 and problem.h >= 28,
    "1x1 of batch 32 at size 14": lambda problem: problem.r == 1 and problem.n >= 32 and problem.h <= 14,
    "groups": lambda problem: problem.groups > 1,
    "dilation": lambda problem: problem.dilation_h > 1,
    "odd sizes": lambda problem: problem.h % 2 == 1,
}
"""Kinds of layers that are left out in turn."""

EDGES: Final = (0.0, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.5, math.inf)
"""Edges of the bins of distance, octaves."""

QUICK: Final = Options(n_sampled=1500, max_leaves=400)
"""Smaller than a tree that is shipped: what counts is how the error grows."""

Found = tuple[float, bool, Result, Result]
"""Distance, whether it is inside the domain, and what the tree's and the single best's choice cost."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, ask and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--dtype", default="float32", type=DType)
    parser.add_argument("--layout", default="nchw", type=Layout)
    parser.add_argument("--kinds", default=",".join(KINDS), help="Of layers to leave out, separated by commas.")
    chosen = parser.parse_args(arguments)
    measured = _measurements(chosen.device)
    group = chosen.dtype, chosen.layout
    costs = from_table(measured, chosen.device).where(lambda problem: (problem.dtype, problem.layout) == group)
    judged: list[Found] = []
    for kind in chosen.kinds.split(","):
        sys.stderr.write(f"without {kind}\n")
        judged += leave_out(costs, device_of(measured, chosen.device), KINDS[kind])
    print(report(judged))


def leave_out(costs: Costs, device: Device, is_left_out: Callable[[ConvProblem], bool]) -> list[Found]:
    """Train without some layers, and choose for them.

    Parameters
    ----------
    costs : Costs
    device : Device
    is_left_out : callable (problem) -> bool
    """
    known, unseen = costs.where(lambda problem: not is_left_out(problem)), costs.where(is_left_out)
    if not unseen.problems:
        return []
    model = fit(known, device, options=QUICK)
    domain, order = domain_of(model), single_best_order(known)
    if domain is None:
        raise AssertionError("a tree that was trained now has a domain")
    places = [domain.locate(problem) for problem in unseen.problems]
    tree = judge(unseen, Advisor(model).predict_order)
    single = judge(unseen, partial(_always, order))
    return [
        (place.distance, place.is_inside, by_tree, by_single)
        for place, by_tree, by_single in zip(places, tree, single, strict=True)
        if by_tree.is_timed and by_single.is_timed
    ]


def report(judged: Sequence[Found]) -> str:
    """Both rules by distance, and by whether the tree abstains."""
    rows = []
    for low, high in pairwise(EDGES):
        rows.append((f"{low:g} to {high:g}", [entry for entry in judged if low <= entry[0] < high]))
    rows.append(("inside", [entry for entry in judged if entry[1]]))
    rows.append(("outside", [entry for entry in judged if not entry[1]]))
    cells = [
        (name, str(len(part)), _spread(entry[2] for entry in part), _spread(entry[3] for entry in part))
        for name, part in rows
        if part
    ]
    head = ("octaves away", "problems", "tree", "single best")
    lines = ["| " + " | ".join(line) + " |" for line in [head, ("---",) * len(head), *cells]]
    return "\n".join(lines)


def _spread(results: Iterable[Result]) -> str:
    slowdowns = np.array([result.slowdown for result in results])
    mean = math.exp(float(np.log(slowdowns).mean()))
    return f"{mean:.3f} · {np.quantile(slowdowns, 0.95):.2f} · {slowdowns.max():.1f}"


def _always(order: Sequence[str], _problem: ConvProblem) -> Sequence[str]:
    return order


def _measurements(device_id: str) -> pa.Table:
    """The measurements of a device without those on layers held out for judging, on which nothing is trained."""
    attempts = attempts_in(TIMINGS / device_id)
    return attempts.filter(pc.not_equal(attempts["source"], "held-out"))


if __name__ == "__main__":
    main()
