"""The tree of one GPU, lent to another that has none: its ranking, and its times scaled by the two rooflines.

Arithmetic is scaled by the published peak of the precision, bytes by the bandwidth of the memory, or by processors and
clock where the L2 caches hold them, and the least time of a launch stays. A problem's distance from its roofline counts
as the same on both, which nobody has measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, Final

from conv_advisor.data.gpus import Gpu, gpus
from conv_advisor.data.problem import DType

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from conv_advisor.data.measurement import Device
    from conv_advisor.models.tree.file import TreeModel

_BYTES_PER_MS: Final = 1e6
"""Bytes a ms of one GB/s."""


@dataclass(frozen=True)
class Loan:
    """What one GPU's tree says about another GPU.

    Parameters
    ----------
    lender, borrower : Device
    """

    lender: Device
    borrower: Device

    @property
    def is_far(self) -> bool:
        """Whether the architectures differ: nobody knows what the ranking costs then."""
        return self.lender.capability != self.borrower.capability

    @property
    def is_scaled(self) -> bool:
        """Whether enough is published of both to scale times; otherwise times are the lender's, unscaled."""
        return self._facts is not None

    @property
    def reason(self) -> str:
        """Why the confidence in a ranking is unknown."""
        how = ", scaled by the published figures of both" if self.is_scaled else " as they are"
        lent_times = (
            f"{self.borrower.name} has no tree of its own, and predicted times are those of {self.lender.name}{how}"
        )
        if not self.is_far:
            return lent_times
        return f"{lent_times}, whose compute capability is {self.lender.capability}, not {self.borrower.capability}"

    @property
    def bandwidth_ratio(self) -> float:
        """Memory bandwidth of the borrower over that of the lender."""
        facts = self._facts
        return facts[1].bandwidth_gb_s / facts[0].bandwidth_gb_s if facts else 1.0

    def slowdown(self, problem_bytes: int, flops: float, dtype: DType, roofline: Sequence[float]) -> float:
        """Time on the borrower over that on the lender.

        Parameters
        ----------
        problem_bytes : int
        flops : float
        dtype : DType
        roofline : sequence of float
            The lender's flops a ms, bytes a ms, and least ms.
        """
        if self._facts is None:
            return 1.0
        flops_per_ms, bytes_per_ms, least_ms = roofline
        lent_ms = max(flops / flops_per_ms, problem_bytes / bytes_per_ms, least_ms)
        flops_ms = flops / (flops_per_ms * self._peak_ratios[dtype])
        bytes_ms = problem_bytes / self._bytes_per_ms(problem_bytes, bytes_per_ms)
        return max(flops_ms, bytes_ms, least_ms) / lent_ms

    def _bytes_per_ms(self, problem_bytes: int, lent: float) -> float:
        """Bytes a ms that the borrower reaches where the lender reaches `lent`."""
        assert self._facts is not None  # noqa: S101 - or nothing is scaled
        lender, borrower = self._facts
        from_cache = lent * borrower.processors * borrower.boost_mhz / (lender.processors * lender.boost_mhz)
        lent_cache = self.lender.l2_bytes
        if problem_bytes <= min(lent_cache, self.borrower.l2_bytes or lent_cache):
            return from_cache
        if problem_bytes <= lent_cache:  # the lender's cache holds the problem, the borrower's does not
            return min(from_cache, borrower.bandwidth_gb_s * _BYTES_PER_MS)
        return lent * self.bandwidth_ratio

    @cached_property
    def _facts(self) -> tuple[Gpu, Gpu] | None:
        lender, borrower = (gpus().get(device.id) for device in (self.lender, self.borrower))
        return (lender, borrower) if lender and borrower else None

    @cached_property
    def _peak_ratios(self) -> dict[DType, float]:
        assert self._facts is not None  # noqa: S101 - or nothing is scaled
        lender, borrower = self._facts
        return {dtype: borrower.tflops(dtype) / lender.tflops(dtype) for dtype in DType}


def lent_to(borrower: Device, models: Iterable[TreeModel], *, needs_times: bool = True) -> TreeModel | None:
    """The tree of the GPU that is nearest to another, by architecture, then by bandwidth; None where none is near.

    Parameters
    ----------
    borrower : Device
    models : iterable of TreeModel
    needs_times : bool
        False where a ranking is enough: then a GPU without published figures borrows from its own architecture.
    """
    loans = {model: Loan(model.device, borrower) for model in models if model.device.kind == borrower.kind == "cuda"}
    near = [model for model, loan in loans.items() if loan.is_scaled or not (needs_times or loan.is_far)]
    return min(near, key=lambda model: _distance(loans[model]), default=None)


def _distance(loan: Loan) -> tuple[bool, bool, bool, float]:
    has_other_major = loan.lender.capability.split(".")[0] != loan.borrower.capability.split(".")[0]
    return has_other_major, loan.is_far, not loan.is_scaled, abs(log(loan.bandwidth_ratio))
