"""Time to convert a tensor from one layout to the other: an estimate, until somebody has measured it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from conv_advisor.models.advice.advisor import Advisor

UNCOUNTED: Final = "conversions between layouts are not counted: without a tree nothing is known of what they take"


def converter(advisor: Advisor) -> Callable[[int], float]:
    """Time in ms of a conversion, by the bytes of the tensor.

    A launch, and each byte read once and written once at the rate that the fastest variants of every precision and
    layout reach: the lowest of their highest rates, since those beyond it were helped by the cache. On an H200 that is
    1.8 us and 4.8 TB/s; copies that PyTorch's compiler made, of float32, took 2.3 us for 0.4 MB (1.9 by this), 2.8 for
    3.2 MB (3.1) and 51 for 103 MB (45). Without a model these rates are unknown, and conversions count nothing, which
    `UNCOUNTED` says.

    Parameters
    ----------
    advisor : Advisor
    """
    if advisor.model is None:
        return lambda n_bytes: 0.0
    rooflines = advisor.model.arrays["roofline"]
    bytes_per_ms, least_ms = float(rooflines[:, 1].min()), float(rooflines[:, 2].max())
    bytes_per_ms *= advisor.bandwidth_ratio
    return lambda n_bytes: least_ms + 2 * n_bytes / bytes_per_ms
