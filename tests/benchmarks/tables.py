"""Tables of times, made up by hand, as training and the guidelines read them."""

from __future__ import annotations

import numpy as np

from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.costs import Costs


def costs_of(times_ms: dict[str, dict[str, float]], *, dtype: str = "float32", layout: str = "nchw") -> Costs:
    """Times by layer and variant; what is not there does not run.

    Parameters
    ----------
    times_ms : dict of short layer to dict of variant to ms
    """
    variants = tuple(sorted({variant for row in times_ms.values() for variant in row}))
    time_ms = np.array([[row.get(variant, np.nan) for variant in variants] for row in times_ms.values()])
    return Costs(
        variants=variants,
        problems=tuple(ConvProblem.parse(layer, dtype=dtype, layout=layout) for layer in times_ms),
        time_ms=time_ms,
        noise=np.where(np.isnan(time_ms), np.nan, 0.001),
        is_pruned=np.zeros(time_ms.shape, dtype=bool),
        is_refused=np.isnan(time_ms),
        is_known=np.ones(time_ms.shape, dtype=bool),
        workspace_bytes=np.zeros(time_ms.shape),
    )
