"""Variants that are worth a try for a problem: the first of the ranking that are accurate enough."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Final

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import NoAdvice
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.cudnn.variants import ENGINE_PREFIX, FUSED_PRODUCTS
from conv_advisor.kernels.variant import Ending, Maker, why_not
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.pareto import SAME_ERROR
from conv_advisor.models.planning.conversion import converter
from conv_advisor.models.ranking.accuracy import allowed_error, expected_error, laws_of
from conv_advisor.torch.choosing.choice import Choice
from conv_advisor.torch.options import Options

MOST_SLOWDOWN: Final = 1.5
"""A variant that is predicted to be further behind the first is not timed: it would cost more than it may win."""

MOST_SUBSTITUTES: Final = 5
"""Variants that are tried at most in the place of those that fail."""

ONLY_ENDED: Final = f"{ENGINE_PREFIX}{FUSED_PRODUCTS}"
"""A variant of convolutions with what follows alone. Measurements are of bare convolutions, so no ranking has it."""


def candidates(advisor: Advisor, problem: ConvProblem, options: Options) -> list[Choice]:
    """The first variants of the ranking that are to be timed, at least one; none is timed yet.

    Parameters
    ----------
    advisor : Advisor
    problem : ConvProblem
    options : Options

    Returns
    -------
    list of Choice
        With predicted times. Variants whose law of errors says that they will not be accurate enough are left out; only
        those for which that is certain, where variants are to be measured. As many as are to be measured will run:
        plans of cuDNN, which may refuse what follows a convolution, come beside them, and so does `ONLY_ENDED` in half
        precision, whose time is unknown.
    """
    ranked, known = _ranked(advisor, problem, options)
    chosen = [
        choice
        for choice in _first(ranked, problem, max(1, options.measure))
        if _time_ms(choice) <= MOST_SLOWDOWN * _time_ms(ranked[0])
    ]
    is_unknown = known and problem.dtype.itemsize_bytes == 2 and ONLY_ENDED not in {choice.variant for choice in chosen}
    if options.measure and is_unknown and why_not(VARIANTS[ONLY_ENDED], problem, advisor.device) is None:
        chosen.append(Choice(ONLY_ENDED, is_measured=False))
    return chosen


def substitutes(advisor: Advisor, problem: ConvProblem, options: Options, tried: Container[str | None]) -> list[Choice]:
    """What follows in the ranking: to be tried in this order, where too few of the `candidates` have a time.

    Parameters
    ----------
    advisor : Advisor
    problem : ConvProblem
    options : Options
    tried : container of str
        Variants of which something is known already.
    """
    ranked, _ = _ranked(advisor, problem, options)
    untried = [choice for choice in ranked if choice.variant not in tried]
    return untried[:MOST_SUBSTITUTES]


def _ranked(advisor: Advisor, problem: ConvProblem, options: Options) -> tuple[list[Choice], Container[str]]:
    """The ranking with predicted times, fastest first, without what the options leave out; and all variants of it."""
    try:
        advice = advisor.only(_maker(options)).advise(
            problem, max_workspace_bytes=options.max_workspace_bytes, is_deterministic=options.deterministic
        )
    except NoAdvice:
        return [], ()
    appended_ms = _appended_ms(advisor, problem) if advice.uncounted else 0.0
    times_ms = {
        entry.variant: entry.time_ms + appended_ms * _appends(entry.variant, problem.epilogue)
        for entry in advice.ranking
    }
    ranked = [
        variant
        for variant in _accurate(advisor, problem, advice, options)
        if _takes(variant, advisor, problem, options)
    ]
    if appended_ms:
        ranked.sort(key=times_ms.__getitem__)
    torch_ms = advice.baselines.pytorch_default.time_ms
    torch_ms = torch_ms and torch_ms + appended_ms
    return [
        Choice(variant, time_ms=times_ms[variant], torch_ms=torch_ms, is_measured=False) for variant in ranked
    ], times_ms


def _maker(options: Options) -> Maker | None:
    return Maker.CUDNN if options.only_cudnn else None


def _time_ms(choice: Choice) -> float:
    return choice.time_ms or 0.0


def _first(ranked: Sequence[Choice], problem: ConvProblem, count: int) -> Iterator[Choice]:
    """The first variants: so many that take the problem for certain, and at most as many that may refuse it."""
    left = dict.fromkeys((False, True), count)
    for choice in ranked:
        is_certain = not problem.epilogue or VARIANTS[choice.variant or ""].ending is not Ending.LIBRARY
        if left[is_certain]:
            left[is_certain] -= 1
            yield choice
        if not left[True]:
            return


def _takes(variant: str, advisor: Advisor, problem: ConvProblem, options: Options) -> bool:
    """Whether a variant of a ranking, which may be one of convolutions alone, may run a problem with what follows."""
    if not problem.epilogue:
        return True
    if options.only_cudnn and _appends(variant, problem.epilogue):  # a kernel of ours
        return False
    return why_not(VARIANTS[variant], problem, advisor.device) is None


def _accurate(advisor: Advisor, problem: ConvProblem, advice: Advice, options: Options) -> list[str]:
    """The variants of a ranking that are accurate enough, as far as the laws of errors say."""
    laws = laws_of(advisor.model)
    errors = {entry.variant: expected_error(laws, entry.variant, problem)[0] for entry in advice.ranking}
    own_error = errors.get(_own_variant(advice), min(errors.values()))
    allowed = allowed_error(problem, own_error, options.max_error_ratio) * (SAME_ERROR if options.measure else 1.0)
    return [variant for variant, error in errors.items() if error <= allowed]


def _own_variant(advice: Advice) -> str:
    """What PyTorch's own convolution runs: the choice of cuDNN's heuristic, where that is known."""
    return advice.baselines.cudnn_heuristic.variant or ""


def _appends(variant: str, epilogue: Epilogue) -> bool:
    return VARIANTS[variant].ending_of(epilogue) is Ending.APPENDED


def _appended_ms(advisor: Advisor, problem: ConvProblem) -> float:
    """Time of an elementwise kernel for the epilogue: it reads y and the residual, and writes y.

    Times that do not count the epilogue are right for a variant that fuses it; one that appends a kernel, as PyTorch
    does, takes this much longer.
    """
    return converter(advisor)(problem.y_bytes * (3 if problem.epilogue.residual else 2) // 2)
