"""One GPU: which variants its convolutions might take, which of them is fastest, and what runs it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import inf
from pathlib import Path
from typing import Any, Final

import torch
from platformdirs import user_data_path

from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import ConvAdvisorError, ModelRejected, UnknownDevice
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import why_not
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.planning.conversion import converter
from conv_advisor.models.registry.on_disk import Registry
from conv_advisor.models.tree.file import TreeModel
from conv_advisor.models.tree.loan import Loan, lent_to
from conv_advisor.torch.calls.layers import Geometry, problem_of, sides_of
from conv_advisor.torch.calls.loaded import LOADED, Run, plan_behind, plan_name
from conv_advisor.torch.calls.running import Prepared
from conv_advisor.torch.calls.timing import Timed, Trial
from conv_advisor.torch.choosing.candidates import MOST_SLOWDOWN, candidates, substitutes
from conv_advisor.torch.choosing.choice import Choice
from conv_advisor.torch.choosing.fastest import elementwise_ms, fastest
from conv_advisor.torch.choosing.plans import PlanFile, basis_of, default_path
from conv_advisor.torch.choosing.preparing import Preparer, options_of, warmed
from conv_advisor.torch.log import log, warn_of_failure
from conv_advisor.torch.options import Options

STAYS: Final = "convolutions on cuda:%d stay PyTorch's own: %s"
"""What is logged of a GPU that cannot be used."""
BEHIND_PROLOGUE: Final = "cuda.implicit_gemm_nhwc"
"""The variant that can load x through a batch norm and a ReLU."""
SPENT: Final = "prepared %d variants in %.2f s, and tried those of %d problems in %.2f s"
"""What is logged of the first call."""

_opened: Final[dict[int, Gpu | None]] = {}
_open_lock: Final = threading.Lock()


def open_gpu(device: int) -> Gpu | None:
    """The chooser of a GPU; None, and one warning, where it cannot be used.

    The libraries that variants call keep to one device of a process: the first that is asked for.
    """
    with _open_lock:
        if device not in _opened:
            others = [f"cuda:{index}" for index, gpu in _opened.items() if gpu is not None]
            try:
                if others:
                    raise UnknownDevice(f"cuda:{device}", others, "this process has begun with another")
                _opened[device] = Gpu(device)
            except (ConvAdvisorError, ImportError, OSError) as error:
                log.warning(STAYS, device, error)
                _opened[device] = None
        return _opened[device]


def load_kept(plan: str, x: Any, weight: Any, geometry: tuple[Any, ...], epilogue: Epilogue) -> Run | None:
    """What runs a plan on a shape that its graph was not made for, where a choice for that shape is kept.

    Parameters
    ----------
    plan : str
        As the graph names it.
    x, weight : tensor
    geometry : tuple
        Stride, padding, dilation and groups.
    epilogue : Epilogue
        With which the plan ends.
    """
    gpu = open_gpu(x.get_device())
    key, _, limits = plan.partition("/")
    stride, padding, dilation, groups = geometry
    shape = Geometry(tuple(stride), sides_of(padding), tuple(dilation), groups)
    problem = problem_of(x, weight, shape, is_tf32_allowed=f"-{DType.TF32}-" in key)
    if gpu is None or isinstance(problem, str):
        return None
    problem = replace(problem, epilogue=epilogue)
    return gpu.load_kept(problem, plan_name(problem.key, limits))


class Gpu:
    """A `Chooser` for one GPU.

    Parameters
    ----------
    index : int

    Raises
    ------
    UnknownDevice
        There is no tree for a device like it.
    NotSupported
    """

    def __init__(self, index: int) -> None:
        self._index, self._place = index, torch.device("cuda", index)
        with torch.cuda.device(index):
            self._preparer = Preparer(index)
            self.device = self._preparer.device
            self._stream = torch.cuda.Stream(index)
        self._read_tree = _tree_of(self.device)
        self._basis = basis_of(self.device, torch.__version__)
        self._files: dict[Path, PlanFile] = {}
        self._loaded: dict[str, tuple[Choice, Run | None]] = {}
        self._lock = threading.RLock()

    @cached_property
    def _advisor(self) -> Advisor:
        """The advisor by the device's tree, read only when nothing is kept: a process that has plans starts sooner."""
        try:
            return Advisor(self._read_tree(), self.device)
        except ModelRejected as error:
            log.warning(STAYS, self._index, error)
            return Advisor(None, self.device)

    @cached_property
    def _convert_ms(self) -> Callable[[int], float]:
        return converter(self._advisor)

    def choose(self, layers: Mapping[ConvProblem, str], options: Options) -> Mapping[ConvProblem, Choice]:
        """As `Chooser.choose` says; what is not kept yet is measured, and then kept."""
        if torch.cuda.is_current_stream_capturing():
            return {problem: Choice(None, reason="it was compiled during a capture") for problem in layers}
        with self._preparing():
            return self._choose(layers, options)

    def kept(self, problem: ConvProblem, options: Options) -> Choice | None:
        """As `Chooser.kept` says it."""
        if torch.cuda.is_current_stream_capturing():
            return None
        with self._preparing():
            plan = plan_name(problem.key, options.limits)
            choice = self._kept(problem, plan, self._file(options))
            if choice is None or choice.variant is None or self._has_loaded(problem, plan, choice):
                return choice
            ready = self._preparer.prepare(problem, choice, options)
            if isinstance(ready, Prepared):
                self._load(problem, plan, choice, ready)
                return choice
            return None

    @contextmanager
    def _preparing(self) -> Iterator[None]:
        with (
            self._lock,
            torch.cuda.device(self._index),
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast("cuda", enabled=False),
        ):
            yield

    def load_kept(self, problem: ConvProblem, plan: str) -> Run | None:
        """What runs a problem by the choice that is kept of it; None where none is, or it is PyTorch's own."""
        options = options_of(plan)
        with self._preparing():
            self._file(options)  # a model may have been unpickled, and nothing chosen here yet
            choices = (self._kept(problem, plan, file) for file in self._files.values())
            choice = next((choice for choice in choices if choice is not None), None)
            if choice is None or choice.variant is None:
                return None
            ready = self._preparer.prepare(problem, choice, options)
            if isinstance(ready, Prepared):
                return warmed(plan, {choice.variant: ready}).get(choice.variant)
        warn_of_failure(plan, ready)
        return None

    def _kept(self, problem: ConvProblem, plan: str, file: PlanFile) -> Choice | None:
        """What a file keeps of a plan; None too where this version does not have the variant, or bars it here."""
        choice = file.get(plan)
        if choice is None or choice.variant is None:
            return choice
        variant = VARIANTS.get(choice.variant)
        return None if variant is None or why_not(variant, problem, self.device) else choice

    def choose_behind_prologues(self, problems: Mapping[ConvProblem, float], options: Options) -> set[ConvProblem]:
        """As `Chooser.choose_behind_prologues` says; what is not kept yet is measured, and then kept."""
        if options.only_cudnn or not options.measure or torch.cuda.is_current_stream_capturing():
            return set()
        with self._preparing():
            return {problem for problem, most_ms in problems.items() if self._runs_behind(problem, most_ms, options)}

    def _runs_behind(self, problem: ConvProblem, most_ms: float, options: Options) -> bool:
        """Whether a problem runs behind a prologue in less than so many ms; what runs it is then loaded."""
        plan = plan_behind(plan_name(problem.key, options.limits))
        kept = self._kept(problem, plan, self._file(options))
        if kept is not None and (kept.variant is None or not (kept.time_ms or inf) < most_ms):
            return False
        if kept is not None and self._has_loaded(problem, plan, kept):
            return True
        choice = kept or Choice(BEHIND_PROLOGUE)
        is_taken = why_not(VARIANTS[BEHIND_PROLOGUE], problem, self.device) is None
        ready = self._preparer.prepare(problem, choice, options) if is_taken else None
        if not isinstance(ready, Prepared) or not ready.takes_prologue:
            return False
        if kept is None:
            choice = self._timed_behind(problem, ready, options)
            self._file(options).add({plan: choice})
            if not choice.variant or not (choice.time_ms or inf) < most_ms:
                return False
        if not warmed(plan, {BEHIND_PROLOGUE: ready}):
            return False
        self._load(problem, plan, choice, ready)
        return True

    def _timed_behind(self, problem: ConvProblem, run: Prepared, options: Options) -> Choice:
        try:
            with Trial(problem, self._place, self._stream, options.max_error_ratio) as trial:
                timed = trial.behind_prologue(run)
        except Exception as error:  # such as no memory for its operands
            return Choice(None, reason=str(error))
        if timed is None:
            log.info("%s behind a prologue: %s", problem.key, trial.failures[0])
            return Choice(None, reason="it fails behind a prologue")
        return Choice(BEHIND_PROLOGUE, dict(run.plan), timed.time_ms, max_error=timed.max_error)

    def predicted_ms(self, problem: ConvProblem, options: Options) -> float | None:
        """As `Chooser.predicted_ms` says it: by the tree."""
        first = candidates(self._advisor, problem, options)[:1]
        return first[0].time_ms if first else None

    def conversion_ms(self, n_bytes: int, options: Options) -> float:
        """As `Chooser.conversion_ms` says it, with what its kernel takes the host."""
        return elementwise_ms(self._convert_ms(n_bytes), graphs=options.graphs)

    def kept_layouts(self, network: str, options: Options) -> tuple[Layout, ...] | None:
        """As `Chooser.kept_layouts` says it."""
        with self._lock:
            return self._file(options).get_layouts(f"{network}/{options.limits}")

    def keep_layouts(self, network: str, layouts: Sequence[Layout], options: Options) -> None:
        """As `Chooser.keep_layouts` says it; what was predicted alone is not kept."""
        if options.measure:
            with self._lock:
                self._file(options).add_layouts(f"{network}/{options.limits}", layouts)

    def _choose(self, layers: Mapping[ConvProblem, str], options: Options) -> dict[ConvProblem, Choice]:
        file = self._file(options)
        plans = {problem: plan_name(problem.key, options.limits) for problem in layers}
        found = {problem: self._kept(problem, plan, file) for problem, plan in plans.items()}
        stored = {problem: choice for problem, choice in found.items() if choice is not None}
        to_pick = {problem: candidates(self._advisor, problem, options) for problem in layers if problem not in stored}
        loaded = {problem for problem, choice in stored.items() if self._has_loaded(problem, plans[problem], choice)}
        to_prepare = to_pick | {problem: [choice] for problem, choice in stored.items() if problem not in loaded}
        begun = time.perf_counter()
        ready = self._preparer.prepare_all(to_prepare, options)
        prepared = time.perf_counter()
        for problem in stored.keys() - loaded:
            ready[problem] = warmed(plans[problem], ready[problem])
        picked = {problem: self._pick(problem, to_pick[problem], ready[problem], options) for problem in to_pick}
        spent_s = (prepared - begun, time.perf_counter() - prepared)
        log.info(SPENT, sum(map(len, ready.values())), spent_s[0], len(to_pick), spent_s[1])
        if to_pick:
            torch.cuda.empty_cache()  # operands of every shape, which nobody needs again
        choices = picked | {
            problem: choice
            for problem, choice in stored.items()
            if problem in loaded or choice.variant in (None, *ready[problem])
        }
        for problem in layers.keys() - loaded:
            choice = choices.setdefault(problem, Choice(None, reason="what was kept of it cannot be prepared"))
            self._load(problem, plans[problem], choice, ready[problem].get(choice.variant or ""))
        if picked:
            file.add({plans[problem]: choice for problem, choice in picked.items()})
        return choices

    def _has_loaded(self, problem: ConvProblem, plan: str, choice: Choice) -> bool:
        """Whether a problem runs by this choice already."""
        before, run = self._loaded.get(plan, (None, None))
        return run is not None and before == choice and LOADED.get(self._key(problem, plan)) is run

    def _load(self, problem: ConvProblem, plan: str, choice: Choice, run: Prepared | None) -> None:
        LOADED[self._key(problem, plan)] = run
        self._loaded[plan] = (choice, run)

    def _key(self, problem: ConvProblem, plan: str) -> tuple[str, Any, int]:
        return plan, torch.Size((problem.n, problem.c, problem.h, problem.w)), self._index

    def _file(self, options: Options) -> PlanFile:
        path = Path(options.plan_file) if options.plan_file else default_path(self.device.id)
        if path not in self._files:
            self._files[path] = PlanFile(path, self._basis, is_ours=not options.plan_file)
        return self._files[path]

    def _pick(
        self, problem: ConvProblem, candidates: Sequence[Choice], ready: dict[str, Prepared], options: Options
    ) -> Choice:
        """The fastest of PyTorch's own convolution and the variants that are ready; the first if none are measured.

        Where some of them fail, others are made ready in their place.
        """
        if not candidates:
            return Choice(None, reason="no variant applies")
        plan = plan_name(problem.key, options.limits)
        if options.measure == 0:
            ran = warmed(plan, ready)
            first = (choice for choice in candidates if choice.variant in ran)
            return next(first, Choice(None, reason="the first variant fails"))
        timed: dict[str, Timed] = {}
        try:
            with Trial(problem, self._place, self._stream, options.max_error_ratio) as trial:
                own = trial.own()
                for variant, run in ready.items():
                    if (result := trial.of(run)) is not None:
                        timed[variant] = result
                others = self._substitutes(problem, candidates, options, MOST_SLOWDOWN * own.time_ms)
                while len(timed) < min(options.measure, len(candidates)) and (substitute := next(others, None)):
                    if (result := trial.of(ready.setdefault(*substitute))) is not None:
                        timed[substitute[0]] = result
        except Exception as error:  # such as no memory for its operands
            warn_of_failure(plan, error)
            return Choice(None, reason="it cannot be timed")
        if timed:
            plans = {variant: ready[variant].plan for variant in timed}
            return fastest(
                own,
                timed,
                plans,
                calling_blas={variant for variant in timed if ready[variant].calls_blas},
                has_ending=bool(problem.epilogue),
                graphs=options.graphs,
            )
        if not trial.failures:
            return Choice(None, reason="none of the first variants can be prepared")
        warn_of_failure(plan, trial.failures[0])
        return Choice(None, {}, None, own.time_ms, None, own.max_error, "the first variants fail")

    def _substitutes(
        self, problem: ConvProblem, tried: Sequence[Choice], options: Options, most_ms: float
    ) -> Iterator[tuple[str, Prepared]]:
        """The next of the ranking that are not predicted to take longer than that, one prepared after the other."""
        for choice in substitutes(self._advisor, problem, options, {candidate.variant for candidate in tried}):
            if (choice.time_ms or 0.0) > most_ms:
                return
            prepared = self._preparer.prepare(problem, choice, options)
            if isinstance(prepared, Prepared):
                yield choice.variant or "", prepared


def _tree_of(device: Device) -> Callable[[], TreeModel]:
    """A function that reads the tree of a device, or that of the nearest GPU with one, whose times it will not have."""
    registry = Registry(Path(os.environ.get("CONV_ADVISOR_HOME") or user_data_path("conv-advisor")))
    if device.id in registry.devices():
        return partial(registry.active, device.id)
    model = lent_to(device, map(registry.active, registry.devices()), needs_times=False)
    if model is None:
        raise UnknownDevice(device.id, registry.devices())
    log.info("%s", Loan(model.device, device).reason)
    return partial(registry.active, model.device.id)
