"""Variants that are worth a try for a problem: the first of the ranking that are accurate enough."""

from __future__ import annotations

from typing import Final

from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Ending, Maker
from conv_advisor.models.accuracy import allowed_error, expected_error, laws_of
from conv_advisor.models.advisor import Advice, Advisor
from conv_advisor.models.pareto import SAME_ERROR
from conv_advisor.models.planning.conversion import converter
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

    Notes
    -----
    Predicted times know no epilogue. Whoever appends a kernel for it, as PyTorch does, takes what reading and writing
    its tensors takes longer than predicted; whoever fuses it takes no longer.
    """
    maker = Maker.CUDNN if options.only_cudnn else None
    try:
        advice = advisor.only(maker).advise(
            problem, max_workspace_bytes=options.max_workspace_bytes, is_deterministic=options.deterministic
        )
    except NoAdvice:
        return []
    appended_ms = _appended_ms(advisor, problem)
    is_appended = {each.variant: appended_ms > 0 and _appends(each.variant) for each in advice.ranking}
    times_ms = {each.variant: each.time_ms + appended_ms * is_appended[each.variant] for each in advice.ranking}
    torch_ms = advice.baselines.pytorch_default.time_ms
    ranked = _accurate(advisor, problem, advice, options)
    if options.only_cudnn:
        ranked = [variant for variant in ranked if not is_appended[variant]]  # by a kernel of ours
    if appended_ms:
        ranked.sort(key=times_ms.__getitem__)
    return [
        Choice(variant, time_ms=times_ms[variant], torch_ms=torch_ms and torch_ms + appended_ms, is_measured=False)
        for variant in ranked[: max(1, options.measure)]
        if times_ms[variant] <= MOST_SLOWDOWN * times_ms[ranked[0]]
    ]


def _accurate(advisor: Advisor, problem: ConvProblem, advice: Advice, options: Options) -> list[str]:
    """The variants of a ranking that are accurate enough, as far as the laws of errors say."""
    laws = laws_of(advisor.model)
    errors = {each.variant: expected_error(laws, each.variant, problem)[0] for each in advice.ranking}
    own_error = errors.get(_own_variant(advice), min(errors.values()))
    allowed = allowed_error(problem, own_error, options.max_error_ratio) * (SAME_ERROR if options.measure else 1.0)
    return [variant for variant, error in errors.items() if error <= allowed]


def _own_variant(advice: Advice) -> str:
    """What PyTorch's own convolution runs: the choice of cuDNN's heuristic, where that is known."""
    return advice.baselines.cudnn_heuristic.variant or ""


def _appends(variant: str) -> bool:
    return VARIANTS[variant].ending is Ending.APPENDED


def _appended_ms(advisor: Advisor, problem: ConvProblem) -> float:
    """What an elementwise kernel for the epilogue takes: it reads y and the residual, and writes y."""
    if not problem.epilogue:
        return 0.0
    return converter(advisor)(problem.y_bytes * (3 if problem.epilogue.residual else 2) // 2)
