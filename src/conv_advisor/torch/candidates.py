"""Variants that are worth a try for a problem: the first of the ranking that are accurate enough."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Maker
from conv_advisor.models.accuracy import allowed_error, expected_error, laws_of
from conv_advisor.models.advisor import Advice, Advisor
from conv_advisor.models.pareto import SAME_ERROR
from conv_advisor.torch.choice import Choice
from conv_advisor.torch.options import Options

MOST_SLOWDOWN: Final = 1.5
"""A variant that is predicted to be further behind the first is not timed: it would cost more than it may win."""


def candidates(advisor: Advisor, problem: ConvProblem, options: Options) -> list[Choice]:
    """The first variants of the ranking, as many as are to be timed and at least one; none is timed yet.

    Parameters
    ----------
    advisor : Advisor
    problem : ConvProblem
    options : Options

    Returns
    -------
    list of Choice
        With predicted times. Left out are those whose law of errors says that they will not be accurate enough; where
        they are to be measured, those alone of which that is certain.
    """
    maker = Maker.CUDNN if options.only_cudnn else None
    try:
        advice = advisor.only(maker).advise(
            problem, max_workspace_bytes=options.max_workspace_bytes, is_deterministic=options.deterministic
        )
    except NoAdvice:
        return []
    laws = laws_of(advisor.model)
    errors = {each.variant: expected_error(laws, each.variant, problem)[0] for each in advice.ranking}
    own_error = errors.get(_own_variant(advice), min(errors.values()))
    allowed = allowed_error(problem, own_error, options.max_error_ratio) * (SAME_ERROR if options.measure else 1.0)
    accurate = [each for each in advice.ranking if errors[each.variant] <= allowed]
    torch_ms = advice.baselines.pytorch_default.time_ms
    return [
        Choice(each.variant, time_ms=each.time_ms, torch_ms=torch_ms, is_measured=False)
        for each in accurate[: max(1, options.measure)]
        if each.time_ms <= MOST_SLOWDOWN * accurate[0].time_ms
    ]


def _own_variant(advice: Advice) -> str:
    """What PyTorch's own convolution runs: the choice of cuDNN's heuristic, where that is known."""
    return advice.baselines.cudnn_heuristic.variant or ""
