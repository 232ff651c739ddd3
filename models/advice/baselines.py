"""The alternatives to the advised variant: cuDNN's best, cuDNN's heuristic, PyTorch's default and benchmark mode."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from conv_advisor.data.counting import counted
from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.kernels.variant import Ending
from conv_advisor.models.advice.habits import HEURISTIC, Habits
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.ranking.endings import Endings, Way, eager_work

if TYPE_CHECKING:
    from conv_advisor.data.measurement import Device
    from conv_advisor.models.advice.advice import Exclusion

CUDNN: Final = "cudnn."
"""How the ids of cuDNN's variants begin."""
ENGINE: Final = "cudnn.graph."
"""How the ids of the engines of its graph API begin, among which PyTorch chooses."""

_FAR_BEHIND: Final = "after its first launch it was too far behind to be timed"


class Baseline(msgspec.Struct, frozen=True, gc=False):
    """What another library would run, and how much faster the advised variant is.

    Attributes
    ----------
    variant : str or None
        None where it is unknown, and for PyTorch where it was timed: PyTorch does not say what it runs.
    time_ms : float or None
        None where it is unknown; then the rest is unknown too.
    source : Source or None
        Measured: a time of what is known to run on this very layer. Predicted: the choice, its time, or both.
    speedup : float or None
        Its time over that of the advised variant; below 1 where it is faster than that.
    basis : str
        How its choice and time are known, or why they are not.
    """

    variant: str | None
    time_ms: float | None
    source: Source | None
    speedup: float | None
    basis: str


class Baselines(msgspec.Struct, frozen=True, gc=False):
    """The baselines that every advice is compared with.

    Attributes
    ----------
    cudnn_best : Baseline
        The fastest of cuDNN's variants within the limits: its eight algorithms, and each engine of its graph API by the
        first plan that its heuristics offer.
    cudnn_heuristic : Baseline
        The first choice of the graph API's heuristic A.
    pytorch_default : Baseline
        ``torch.nn.functional.conv2d`` as it comes, without ``cudnn.benchmark``.
    pytorch_benchmark : Baseline
        The same with ``cudnn.benchmark``, after its tuning.
    """

    cudnn_best: Baseline
    cudnn_heuristic: Baseline
    pytorch_default: Baseline
    pytorch_benchmark: Baseline


NAMES: Final = {
    "cudnn_best": "cuDNN's best",
    "cudnn_heuristic": "cuDNN's heuristic",
    "pytorch_default": "PyTorch's default",
    "pytorch_benchmark": "PyTorch's benchmark mode",
}
"""The name that people read, by field of `Baselines`."""


class Rivals:
    """Compares advice on one device with what other libraries run there.

    Parameters
    ----------
    device : Device
    habits : Habits or None
        None where nobody looked at what other libraries run on the device.
    """

    def __init__(self, device: Device, habits: Habits | None) -> None:
        self._habits = habits
        self._none = None if device.kind == "cuda" else _unknown(f"it does not run on {device.id}, which is no GPU")
        self._untimed = _unknown("PyTorch was not timed on this device")
        self._asked = f"cuDNN was asked for its {HEURISTIC.removeprefix(CUDNN)} on this layer"
        if habits:
            self._learned = (
                f"learned from what the heuristic chose on {habits.n_asked:,} problems: on layers held out it is right "
                f"in {habits.share_right:.0%}, and within 5% of the time in {habits.share_near:.0%}"
            )
            self._timed = f"timed in another run, by {habits.software.partition(';')[0]}"
            self._followed = (
                "it runs what cuDNN's heuristic chooses: where both were timed they took the same within 5% "
                f"in {habits.share_beside:.0%} of {habits.n_beside:,} problems; "
            )
            self._tuned = (
                "it tries the plans that cuDNN's heuristics offer, once each: where it was timed it took as long as "
                f"the fastest of cuDNN's engines within 5% in {habits.share_tuned:.0%} of {habits.n_tuned:,} problems, "
                f"and {habits.tuned_ratio:.2f} times as long in the mean"
            )

    def beside(
        self,
        problem: ConvProblem,
        ranking: Sequence[Choice],
        excluded: Iterable[Exclusion],
        values: Sequence[float],
        picked: Mapping[str, str],
    ) -> Baselines:
        """What other libraries would run on a problem.

        Parameters
        ----------
        problem : ConvProblem
        ranking : sequence of Choice
            The advised variant first.
        excluded : iterable of Exclusion
            Why the others are out.
        values : sequence of float
            Values of `models.tree.features.FEATURES`.
        picked : mapping of str to str
            The variant that each heuristic chose for this very problem, by the heuristic's name.
        """
        if self._none:
            return Baselines(self._none, self._none, self._untimed, self._untimed)
        advised_ms = ranking[0].time_ms
        cudnn = {
            choice.variant: choice for choice in ranking if choice.variant.startswith(CUDNN) and not _is_launch(choice)
        }
        chosen = picked.get(HEURISTIC)
        if chosen is None:
            heuristic = self._predicted(cudnn, values, advised_ms)
        elif chosen in cudnn:
            heuristic = _baseline(cudnn[chosen], advised_ms, cudnn[chosen].source, self._asked)
        else:
            reasons = {exclusion.variant: exclusion.reason for exclusion in excluded}
            heuristic = _unknown(f"it chooses {chosen}, whose time is unknown: {reasons.get(chosen, _FAR_BEHIND)}")
        default, tuned = self._default(problem, heuristic, advised_ms), self._benchmark(problem, cudnn, advised_ms)
        return Baselines(_best(cudnn, advised_ms), heuristic, default, tuned)

    def _predicted(self, cudnn: Mapping[str, Choice], values: Sequence[float], advised_ms: float) -> Baseline:
        if self._habits is None:
            return _unknown("cuDNN was not asked about this layer, and nothing is known of what it chooses on others")
        likely = next((name for name in self._habits.likely(values) if name in cudnn), None)
        if likely is None:
            return _unknown("cuDNN was not asked about this layer, and what it chooses on such layers is out here")
        return _baseline(cudnn[likely], advised_ms, Source.PREDICTED, self._learned)

    def _default(self, problem: ConvProblem, heuristic: Baseline, advised_ms: float) -> Baseline:
        known = self._pytorchs(problem, None if self._habits is None else self._habits.default_ms, advised_ms)
        if known is not None:
            return known
        if heuristic.time_ms is None:
            return _unknown(f"it runs what cuDNN's heuristic chooses, and that is unknown: {heuristic.basis}")
        return Baseline(
            heuristic.variant,
            heuristic.time_ms,
            Source.PREDICTED,
            heuristic.speedup,
            self._followed + heuristic.basis,
        )

    def _benchmark(self, problem: ConvProblem, cudnn: Mapping[str, Choice], advised_ms: float) -> Baseline:
        known = self._pytorchs(problem, None if self._habits is None else self._habits.tuned_ms, advised_ms)
        if known is not None:
            return known
        engines = [engine for variant, engine in cudnn.items() if variant.startswith(ENGINE)]
        if not engines:
            return _unknown("no engine of cuDNN is known to run this layer within the limits")
        return _baseline(min(engines, key=_time_ms), advised_ms, Source.PREDICTED, self._tuned)

    def _pytorchs(
        self, problem: ConvProblem, timed_ms: Mapping[str, float] | None, advised_ms: float
    ) -> Baseline | None:
        """PyTorch's baseline where it was timed, or where it cannot be predicted; None elsewhere."""
        if timed_ms is None:
            return self._untimed
        time_ms = timed_ms.get(problem.key)
        if time_ms is not None:
            return Baseline(None, time_ms, Source.MEASURED, time_ms / advised_ms, self._timed)
        if has_kernel_of_pytorch(problem):
            return _unknown("PyTorch runs a depthwise kernel of its own on it, which was not timed on this layer")
        return None


def with_ending(
    counted_baselines: Baselines, alone: Baselines, problem: ConvProblem, endings: Endings, advised_ms: float
) -> Baselines:
    """Baselines on a problem with its epilogue: how other libraries would end the convolution that they run alone.

    Parameters
    ----------
    counted_baselines : Baselines
        Baselines of a ranking whose times count the epilogue.
    alone : Baselines
        Baselines on the convolution alone.
    problem : ConvProblem
    endings : Endings
    advised_ms : float
    """
    way = endings.ways(problem)[Ending.LIBRARY]
    best, heuristic = (
        _fused(baseline, way, problem, advised_ms) for baseline in (alone.cudnn_best, alone.cudnn_heuristic)
    )
    return Baselines(
        cudnn_best=_faster(_adding(counted_baselines.cudnn_best, problem), best),
        cudnn_heuristic=_adding(counted_baselines.cudnn_heuristic, problem) if heuristic is None else heuristic,
        pytorch_default=_eager(counted_baselines.pytorch_default, alone.pytorch_default, problem, endings, advised_ms),
        pytorch_benchmark=_eager(
            counted_baselines.pytorch_benchmark, alone.pytorch_benchmark, problem, endings, advised_ms
        ),
    )


def _fused(alone: Baseline, way: Way, problem: ConvProblem, advised_ms: float) -> Baseline | None:
    """cuDNN's fused plan where its choice alone is known; which engine runs the fused plan is not known."""
    if alone.time_ms is None or not way.cost.n_times:
        return None
    time_ms = way.time_ms(alone.time_ms)
    basis = f"a fused plan, by what such plans took beside {alone.variant or 'plain ones'} alone on other layers"
    return Baseline(None, time_ms, Source.PREDICTED, time_ms / advised_ms, f"{basis}; {problem.epilogue} is in it")


def _faster(one: Baseline, other: Baseline | None) -> Baseline:
    """The faster of two, the first where its time is measured."""
    if other is None or other.time_ms is None or one.source is Source.MEASURED:
        return one
    return one if one.time_ms is not None and one.time_ms <= other.time_ms else other


def _eager(baseline: Baseline, alone: Baseline, problem: ConvProblem, endings: Endings, advised_ms: float) -> Baseline:
    """PyTorch with a kernel for each step of the epilogue, unless it was timed with the epilogue."""
    if baseline.source is Source.MEASURED:
        return baseline
    time_ms = None if alone.time_ms is None else endings.eager_ms(alone.time_ms, problem)
    if time_ms is None:
        known = f"what {problem.epilogue} adds was not timed on this device"
        return _unknown(alone.basis if alone.time_ms is None else known)
    kernels = counted(eager_work(problem).kernels, "kernel")
    basis = f"{alone.basis}; {problem.epilogue} in {kernels} after the convolution, predicted"
    return Baseline(alone.variant, time_ms, Source.PREDICTED, time_ms / advised_ms, basis)


def _adding(baseline: Baseline, problem: ConvProblem) -> Baseline:
    """The baseline, whose basis says that the epilogue's cost is predicted where its time is predicted."""
    if baseline.source is not Source.PREDICTED:
        return baseline
    return msgspec.structs.replace(baseline, basis=f"{baseline.basis}; what {problem.epilogue} adds is predicted")


def has_kernel_of_pytorch(problem: ConvProblem) -> bool:
    """Whether PyTorch may leave cuDNN aside: it has a kernel of its own for depthwise layers in NCHW.

    Notes
    -----
    PyTorch's times on these are up to four times those of cuDNN's heuristic A; on all others they are the same.
    Source: PyTorch, aten/src/ATen/native/Convolution.cpp, ``use_cudnn_depthwise``.
    """
    return problem.layout is Layout.NCHW and problem.groups == problem.c > 1


def _best(cudnn: Mapping[str, Choice], advised_ms: float) -> Baseline:
    best = min(cudnn.values(), key=_time_ms, default=None)
    if best is None:
        return _unknown("no variant of cuDNN is known to run this layer within the limits")
    return _baseline(best, advised_ms, best.source, "the fastest of cuDNN's variants within the limits")


def _time_ms(choice: Choice) -> float:
    return choice.time_ms


def _is_launch(choice: Choice) -> bool:
    """Whether a time is that of one launch: the host's time is in it, and the variant is far behind."""
    return choice.source is Source.MEASURED and choice.uncertainty >= 1


def _baseline(choice: Choice, advised_ms: float, source: Source, basis: str) -> Baseline:
    return Baseline(choice.variant, choice.time_ms, source, choice.time_ms / advised_ms, basis)


def _unknown(reason: str) -> Baseline:
    return Baseline(None, None, None, None, reason)
