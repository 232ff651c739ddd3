"""Times that count in a network, where a launch takes the host time too; and the fastest of the variants by them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf
from typing import Any, Final, NamedTuple

from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Backend
from conv_advisor.torch.calls.timing import Timed
from conv_advisor.torch.choosing.choice import Choice

LEAST_GAIN: Final = 1.01
"""A variant must be this much faster than PyTorch's own convolution, or that stays."""


class Host(NamedTuple):
    """Host time of a launch, ms, and how many times the launch's time on the GPU it may count at most."""

    time_ms: float
    most: float


_HOSTS: Final = {
    Backend.CUDA: Host(0.008, 1.0),
    Backend.CUDNN_GRAPH: Host(0.021, 1.25),
    Backend.CUDNN_LEGACY: Host(0.1, inf),
}
"""In a compiled graph, as `benchmarks.networks.host` has it of the host of an H200; the legacy API took 80 to 330 us on
that of an H100, several times what any layer gains by it that is as short."""
_BLAS: Final = Host(0.095, 1.25)
"""`cuda.gemm` in ResNet-50 at batch 32, float16, as `benchmarks.networks.shares` has it of the same host."""
_OWN: Final = Host(0.022, 1.25)
_ELEMENTWISE_MS: Final = 0.008
"""A kernel of Inductor's behind PyTorch's own convolution."""


def fastest(
    own: Timed,
    timed: Mapping[str, Timed],
    plans: Mapping[str, Any],
    *,
    calling_blas: Collection[str] = (),
    has_ending: bool,
    graphs: bool,
) -> Choice:
    """The fastest variant; PyTorch's own convolution where that is as fast.

    A network waits for its GPU or for its host, and a layer does not know for which. So a launch that takes the host
    longer than the GPU counts as longer than it is, but not by so much that a GPU that is waited for would lose much.

    Parameters
    ----------
    own : Timed
        PyTorch's own, and an elementwise kernel behind it where the problem has an epilogue.
    timed : mapping of str to Timed
        Variants, at least one.
    plans : mapping of str to dict
        What rebuilds each variant, as in `Measurement.plan`.
    calling_blas : collection of str
        Those of them that call cuBLAS.
    has_ending : bool
        Whether the problem has an epilogue.
    graphs : bool
        Whether the host counts for nothing, as in `Options`.
    """
    hosts = {variant: _BLAS if variant in calling_blas else _HOSTS[VARIANTS[variant].backend] for variant in timed}
    counted = {variant: _counted_ms(result.time_ms, hosts[variant], graphs) for variant, result in timed.items()}
    best = min(timed, key=lambda variant: (counted[variant], timed[variant].time_ms))
    own_host = Host(_OWN.time_ms + _ELEMENTWISE_MS * has_ending, _OWN.most)
    if counted[best] * LEAST_GAIN > _counted_ms(own.time_ms, own_host, graphs):
        reason = "it is as fast as the first variants"
        return Choice(None, {}, own.time_ms, own.time_ms, own.max_error, own.max_error, reason)
    time_ms, max_error = timed[best]
    return Choice(best, dict(plans[best]), time_ms, own.time_ms, max_error, own.max_error)


def elementwise_ms(time_ms: float, *, graphs: bool) -> float:
    """Time that counts for a kernel of Inductor's that takes the GPU so long, and that a network could do without.

    It is one launch more: where the network waits for its host it costs a launch, however short the kernel is.
    """
    return time_ms if graphs else max(time_ms, _ELEMENTWISE_MS)


def _counted_ms(time_ms: float, host: Host, graphs: bool) -> float:
    return time_ms if graphs else max(time_ms, min(host.time_ms, host.most * time_ms))
