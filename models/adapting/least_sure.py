"""Which layers and variants to measure first on a GPU that borrows a tree: those with the least confidence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from math import log
from typing import TYPE_CHECKING, Final

from conv_advisor.data import networks
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.adapting.correction import family_of
from conv_advisor.models.ranking.trust import chance_of_best
from conv_advisor.models.tree.features import features
from conv_advisor.models.tree.file import walk

if TYPE_CHECKING:
    from conv_advisor.models.advice.advice import Advice
    from conv_advisor.models.advice.advisor import Advisor

FIRST: Final = 6
"""Variants of a ranking to measure: with the first four to eight known a tree adapts as well as with all of them."""
_FARTHEST: Final = 2.0
"""A family's first variant is measured too where it is predicted within this factor of the best."""
_DRAWN: Final = 4
"""Layers of a kind that are looked at for each one that is measured."""
_BATCHES: Final = (1, 8, 32, 128)
_NETWORKS: Final = ("seeds", "more-networks")


def least_sure(advisor: Advisor, seed: int) -> Iterator[Advice]:
    """Layers of networks to measure, kinds in turn: of a few drawn of a kind, the one that is least sure comes first.

    A kind is a dtype and layout, and whether layers are plain, strided or grouped. Advice is unsure where variants are
    close, and where what bounds the layer is scaled most.

    Parameters
    ----------
    advisor : Advisor
    seed : int
        The same advisor and seed give the same order.
    """
    drawn = random.Random(seed)  # noqa: S311 - no secret
    kinds: dict[tuple[DType, Layout, int], list[ConvProblem]] = {}
    for dtype, layout in product(DType, Layout):
        for name in _NETWORKS:
            for problem in networks.problems(name, batches=_BATCHES, dtypes=(dtype,), layouts=(layout,)):
                kind = 2 if problem.groups > 1 else int(problem.stride_h > 1)
                kinds.setdefault((dtype, layout, kind), []).append(problem)
    pools = [list(dict.fromkeys(pool)) for pool in kinds.values()]
    for pool in pools:
        drawn.shuffle(pool)
    drawn.shuffle(pools)
    while pools := [pool for pool in pools if pool]:
        for pool in pools:
            drawn_advice = [advice for problem in pool[:_DRAWN] if (advice := _advice(advisor, problem))]
            if drawn_advice:
                best = min(drawn_advice, key=lambda advice: _sureness(advisor, advice))
                pool.remove(best.problem)
                yield best
            else:
                del pool[:_DRAWN]


def to_measure(advice: Advice) -> tuple[str, ...]:
    """The first of a ranking, and the first of each other family that is near: one of a family corrects all of it."""
    names = [choice.variant for choice in advice.ranking[:FIRST]]
    families = {family_of(name) for name in names}
    for choice in advice.ranking[FIRST:]:
        family = family_of(choice.variant)
        if family not in families and choice.time_ms <= _FARTHEST * advice.best.time_ms:
            families.add(family)
            names.append(choice.variant)
    return tuple(names)


def _advice(advisor: Advisor, problem: ConvProblem) -> Advice | None:
    try:
        return advisor.advise(problem)
    except NoAdvice:
        return None


def _sureness(advisor: Advisor, advice: Advice) -> float:
    """How sure a ranking is, less how much its times were scaled."""
    model, problem, sure = advisor.model, advice.problem, chance_of_best(advice.ranking)
    if model is None or advisor.loan is None:
        return sure
    roofline = model.roofline(walk(model, features(problem))).tolist()
    return sure - abs(log(advisor.loan.slowdown(problem.bytes, problem.flops, problem.dtype, roofline)))
