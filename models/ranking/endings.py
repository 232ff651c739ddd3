"""What it takes to end a convolution with bias, residual and activation, beside what it takes alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from conv_advisor import data
from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cudnn.variants import algorithm_of
from conv_advisor.kernels.variant import Ending, Variant
from conv_advisor.models.ranking.checked import read_checked
from conv_advisor.models.ranking.words import chance

if TYPE_CHECKING:
    from conv_advisor.models.tree.file import TreeModel
    from conv_advisor.models.tree.loan import Loan

FOLDER: Final = Path(data.__file__).parent / "endings"
"""One file a device, ``<device>.json``, as ``benchmarks.ending_costs`` writes it."""

FORMAT: Final = 1

CARD: Final = "endings"
"""The field of a tree's card that has what training learned."""

EAGER: Final = "eager"
"""PyTorch without a compiler: a kernel each for bias, residual and activation."""

CALL: Final = "call"
"""cuDNN's legacy API computes the epilogue in its call, by the kernels that also compute the convolution alone."""

TURNED_CALL: Final = "call-turned"
"""The same where the kernels are others: 1x1 on tensor cores in NCHW is a matrix product alone, and between copies of x
and y to channels last with an epilogue."""

KINDS: Final = (
    *("fused", "fused-residual", "appended", EAGER, CALL, f"{CALL}-residual", TURNED_CALL),
    *("library", "library-residual", "library-float32", "library-residual-float32"),
)
"""Ways to end that have a `Cost`: those of variants, which fuse with a residual in another way than
without; PyTorch's; and cuDNN's fastest fused plan against its fastest plain one, perhaps of another engine."""

LEAST_SHARE: Final = 0.5
"""A library is not expected to end a layer so if its plans do in less than this share of those they compute alone."""


FUNCTIONS: Final = {Activation.SILU: 2.0, Activation.SIGMOID: 2.0, Activation.GELU_TANH: 2.0, Activation.GELU: 4.0}
"""Special functions of an output: an exponential and a quotient. The error function is 32 other instructions (compiled
for Hopper), of which a multiprocessor issues eight times as many in a cycle."""

_FUNCTIONS_OF_CYCLE: Final = 16
"""Special functions that a multiprocessor computes in a cycle, whatever its generation (CUDA C++ Programming Guide,
arithmetic instructions)."""


class Work(NamedTuple):
    """What an epilogue adds to a convolution: kernels after it, and bytes that are read and written in addition."""

    kernels: int
    n_bytes: int


class Cost(msgspec.Struct, frozen=True):
    """Cost of one way to end on a device: the time alone times `factor`, plus `Work` at these prices.

    Attributes
    ----------
    factor : float
        At least 1.
    kernel_ms, byte_ms : float
        For each kernel and each byte.
    spread : float
        Standard deviation of the log of times over what this gives.
    share : float
        Share of the variants that compute a layer alone that end it so too. Few engines of cuDNN have fused plans.
    n_times : int
        Times that it was fitted to.
    """

    factor: float
    kernel_ms: float
    byte_ms: float
    spread: float
    share: float
    n_times: int

    def time_ms(self, alone_ms: float, work: Work) -> float:
        """The time with the epilogue, from that of the convolution alone."""
        return self.factor * alone_ms + self.kernel_ms * work.kernels + self.byte_ms * work.n_bytes


_UNKNOWN: Final = Cost(1.0, 0.0, 0.0, 0.0, 0.0, 0)


class Way(NamedTuple):
    """One way to end one problem.

    Parameters
    ----------
    cost : Cost
    work : Work
    doubt : str or None
        Why no variant that ends so is expected to run, though its rule allows the problem.
    functions_ms : float
        The special functions of the activation, where no kernel after the convolution computes them: such a kernel
        waits for memory longer.
    """

    cost: Cost
    work: Work
    doubt: str | None
    functions_ms: float = 0.0

    def time_ms(self, alone_ms: float) -> float:
        """What a variant takes, from what it takes for the convolution alone."""
        return self.cost.time_ms(alone_ms, self.work) + self.functions_ms


class Endings(msgspec.Struct, frozen=True, omit_defaults=True):
    """The costs of a device, by kind.

    Attributes
    ----------
    format : int
    device_id, software : str
        Where they were measured, and under what; empty where the measurements do not say.
    n_layers : int
        Number of combinations of layer and epilogue that were measured.
    costs : dict of str to Cost
        Some of `KINDS`: those that were measured.
    function_ms : float
        For each special function, with all multiprocessors at it (`on`); 0 where it is not known.
    """

    format: int
    device_id: str
    software: str
    n_layers: int
    costs: dict[str, Cost]
    function_ms: float = 0.0

    def on(self, device: Device) -> Endings:
        """The same, with special functions as fast as a device's multiprocessors and clock say."""
        cycles = _FUNCTIONS_OF_CYCLE * device.processors * device.max_clock_mhz * 1e3
        return msgspec.structs.replace(self, function_ms=1 / cycles if cycles and device.kind == "cuda" else 0.0)

    def count(self, problem: ConvProblem) -> bool:
        """Whether enough is known of the epilogue of a problem: of variants that fuse it, and of those that append."""
        return all(kind_of(ending, problem) in self.costs for ending in (Ending.FUSED, Ending.APPENDED))

    def ways(self, problem: ConvProblem) -> Mapping[str, Way]:
        """What each way to end a problem takes, by what `way_of` calls it."""
        return {way: self._way(way, problem) for way in (*Ending, CALL, TURNED_CALL)}

    def _way(self, way: str, problem: ConvProblem) -> Way:
        cost, doubt = self.costs.get(kind_of(way, problem)), None
        if cost is None and way in (CALL, TURNED_CALL):
            return self._way(Ending.APPENDED, problem)  # nobody timed such calls there
        if cost is None:
            doubt = f"not measured with {problem.epilogue}, and what that adds to the convolution is unknown"
        elif cost.share < LEAST_SHARE:
            doubt = f"predicted as not supported with {problem.epilogue}: {chance(cost.share)} of such plans were"
        work, n_outputs = work_of(way, problem), problem.y_bytes // problem.dtype.itemsize_bytes
        functions = 0.0 if work.kernels else FUNCTIONS.get(problem.epilogue.activation, 0.0)
        return Way(cost or _UNKNOWN, work, doubt, functions * n_outputs * self.function_ms)

    def eager_ms(self, alone_ms: float, problem: ConvProblem) -> float | None:
        """What PyTorch without a compiler takes, from what it takes for the convolution; None where unknown."""
        cost = self.costs.get(EAGER)
        return None if cost is None else cost.time_ms(alone_ms, eager_work(problem))


def way_of(variant: Variant, problem: ConvProblem) -> str | None:
    """How a variant ends a problem: an `Ending`, `CALL` or `TURNED_CALL`; None where it does not."""
    if variant.ending_of(problem.epilogue) is variant.ending:
        return variant.ending
    is_matrix_product = problem.r == problem.s == 1 and problem.layout is Layout.NCHW
    return TURNED_CALL if is_matrix_product and algorithm_of(variant.id)[1] else CALL


def kind_of(way: str, problem: ConvProblem) -> str:
    """The one of `KINDS` that has the costs of a way to end a problem."""
    if way in (Ending.APPENDED, TURNED_CALL):
        return str(way)
    is_float32 = way == Ending.LIBRARY and problem.dtype is DType.FLOAT32
    return f"{way}{'-residual' * problem.epilogue.residual}{'-float32' * is_float32}"


def work_of(way: str, problem: ConvProblem) -> Work:
    """What a variant does beside the convolution.

    It reads the residual; where a kernel follows, y once more; and where x and y are turned, both twice.
    """
    residual_bytes = problem.y_bytes * problem.epilogue.residual
    if way == Ending.APPENDED:
        return Work(1, 2 * problem.y_bytes + residual_bytes)
    if way == TURNED_CALL:
        return Work(2, 2 * (problem.x_bytes + problem.y_bytes) + residual_bytes)
    return Work(0, residual_bytes)


def eager_work(problem: ConvProblem) -> Work:
    """What eager PyTorch does: each step reads y and writes it, and that of the residual reads the residual too.

    Notes
    -----
    Source: PyTorch, aten/src/ATen/native/Convolution.cpp, where cuDNN's convolution is followed by an addition of the
    bias.
    """
    epilogue = problem.epilogue
    kernels = epilogue.bias + epilogue.residual + (epilogue.activation is not Activation.NONE)
    return Work(kernels, (2 * kernels + epilogue.residual) * problem.y_bytes)


@cache
def _files() -> Mapping[str, Path]:
    """The files that ship, by device: an id is looked up, and never made part of a path."""
    return {path.stem: path for path in FOLDER.glob("*.json")}


def endings_of(device_id: str, model: TreeModel | None = None) -> Endings | None:
    """The costs of a device; None where nobody measured there.

    Parameters
    ----------
    device_id : str
    model : TreeModel, optional
        The costs on its card, which training learned, count before those that ship.

    Raises
    ------
    ModelRejected
        The file or the card is not what was written.
    """
    path = _files().get(device_id)
    shipped = None if path is None else read(path)
    if model is None or CARD not in model.card:
        return shipped
    try:
        learned = msgspec.convert(model.card[CARD], Endings)
    except msgspec.ValidationError as error:
        raise ModelRejected(f"{CARD}: {error}") from error
    if reason := _fault(learned):
        raise ModelRejected(f"{CARD}: {reason}")
    return msgspec.structs.replace(learned, costs=(shipped.costs if shipped else {}) | learned.costs)


def lent_endings(loan: Loan, model: TreeModel) -> Endings | None:
    """The costs of a device that borrows a model: its own, else the lender's with bytes priced at this bandwidth."""
    own, lent = endings_of(loan.borrower.id), endings_of(loan.lender.id, model)
    if own is not None or lent is None:
        return own
    costs = {
        kind: msgspec.structs.replace(cost, byte_ms=cost.byte_ms / loan.bandwidth_ratio)
        for kind, cost in lent.costs.items()
    }
    return msgspec.structs.replace(lent, costs=costs)


@cache
def read(path: Path) -> Endings:
    """Read and check a file.

    Raises
    ------
    ModelRejected
    """
    return read_checked(path, Endings, _fault)


def write(endings: Endings, path: Path) -> None:
    """Write a file that `read` takes; what it would refuse is not written.

    Raises
    ------
    ModelRejected
    """
    if reason := _fault(endings):
        raise ModelRejected(f"{path}: {reason}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(endings)) + b"\n")


def _fault(endings: Endings) -> str | None:
    """What is wrong: a format or kind that nobody knows, or a cost that makes a convolution faster than alone."""
    if endings.format != FORMAT:
        return f"its format is {endings.format}; allowed: {FORMAT}"
    for kind, cost in endings.costs.items():
        if kind not in KINDS:
            return f"its kind {kind!r} is none of {', '.join(KINDS)}"
        least = (cost.factor - 1, cost.kernel_ms, cost.byte_ms, cost.spread, cost.share)
        if not all(0 <= value < float("inf") for value in least):
            return f"its costs of {kind} make a convolution faster than it is alone, or are no numbers"
    return None
