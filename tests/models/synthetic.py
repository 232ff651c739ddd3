"""A made-up device whose times follow plausible laws: tiles, waves, alignment, traffic, overhead and a little noise."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from conv_advisor.data.measurement import Device, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.variant import (
    Algorithm,
    Backend,
    Rule,
    Variant,
    all_of,
    filter_is,
    layout_is,
    no_workspace,
    stride_1,
)
from conv_advisor.kernels.variant import unknown_workspace as unknown
from tests.data.arrow import measurements_to_table, picks_to_table

DEVICE = Device(id="fake-gpu", name="Fake GPU", kind="cuda", capability="9.0", processors=132)

MEASURED_AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

LAYERS = {
    "small": ["7-1-1-256-832", "7-1-3-320-160", "7-1-5-128-48", "7-1-1-384-832", "7-1-3-384-192", "14-1-1-192-480"],
    "middle": ["14-1-3-208-96", "14-1-5-48-16", "14-1-1-160-512", "14-1-3-224-112", "28-1-1-64-192", "28-1-3-128-96"],
    "large": ["56-1-3-64-72", "56-1-1-256-72", "112-1-3-128-64", "56-1-3-256-128", "28-1-3-512-256", "28-1-5-32-16"],
    "odd": ["27-1-5-256-96", "13-1-3-384-256", "13-1-3-384-384", "13-1-3-256-384", "55-1-1-64-16", "55-1-3-64-16"],
}
"""Made-up networks: batch 1 of layers that real ones have."""

PEAK_FLOPS_PER_MS = {DType.FLOAT32: 6e10, DType.TF32: 35e10, DType.FLOAT16: 70e10, DType.BFLOAT16: 68e10}
BYTES_PER_MS = 4.3e9


@dataclass(frozen=True)
class Law:
    """How long one variant takes: a tiled GEMM of its own, or one after transforms that read and write."""

    BM: int
    BN: int
    split: int = 1
    share_of_peak: float = 0.7
    overhead_ms: float = 0.003
    fewer_products: float = 1.0
    extra_traffic: float = 0.0
    tile_outputs: int = 1
    alignment: int = 1

    def time_ms(self, problem: ConvProblem) -> float:
        """Time by the law, without noise."""
        per_side = -(-problem.p // self.tile_outputs) * -(-problem.q // self.tile_outputs) * self.tile_outputs**2
        rows, columns = -(-problem.n * per_side // self.BM), -(-problem.k // self.BN)
        waves = -(-rows * columns * self.split // (2 * DEVICE.processors))
        steps = -(-problem.gemm_k // (32 * self.split))
        flops_per_step = 2 * self.BM * self.BN * 32 * self.fewer_products
        peak = PEAK_FLOPS_PER_MS[problem.dtype] / (2 * DEVICE.processors)
        compute = waves * (steps * (flops_per_step / (peak * self.share_of_peak) + 1.5e-5) + 4e-4)
        traffic = problem.bytes * (1 + self.extra_traffic) + problem.y_bytes * (self.split - 1)
        slow = 1.0 if self._is_aligned(problem) else 1.6
        return self.overhead_ms + slow * max(compute, traffic / BYTES_PER_MS)

    def _is_aligned(self, problem: ConvProblem) -> bool:
        inner = problem.c if problem.layout is Layout.NHWC else problem.h * problem.w
        return inner % self.alignment == 0


LAWS = {
    "cudnn.implicit_gemm": Law(64, 64, share_of_peak=0.45, overhead_ms=0.002),
    "cudnn.implicit_precomp_gemm": Law(128, 128, share_of_peak=0.8, overhead_ms=0.004),
    "cudnn.gemm": Law(128, 64, share_of_peak=0.75, overhead_ms=0.006, extra_traffic=4),
    "cudnn.fft_tiling": Law(64, 64, share_of_peak=0.5, overhead_ms=0.03, fewer_products=0.25, tile_outputs=16),
    "cudnn.winograd_nonfused": Law(
        64, 64, share_of_peak=0.6, overhead_ms=0.012, fewer_products=0.45, extra_traffic=5, tile_outputs=4
    ),
    "cudnn.graph.eng1": Law(256, 128, share_of_peak=0.9, alignment=8),
    "cudnn.graph.eng2": Law(128, 256, share_of_peak=0.92, alignment=8),
    "cudnn.graph.eng3": Law(64, 128, share_of_peak=0.7, alignment=2),
    "cudnn.graph.eng4": Law(64, 64, split=4, share_of_peak=0.6, overhead_ms=0.006),
    "cudnn.graph.eng5": Law(32, 64, split=8, share_of_peak=0.5, overhead_ms=0.007),
    "cuda.direct_naive": Law(8, 16, share_of_peak=0.05, overhead_ms=0.002),
    "cuda.cuconv": Law(16, 32, split=4, share_of_peak=0.3, overhead_ms=0.002, extra_traffic=1),
    "cuda.winograd_fused": Law(32, 32, share_of_peak=0.4, fewer_products=0.45, tile_outputs=2),
}


def _variant(variant_id: str, *rules: Rule) -> Variant:
    return Variant(
        id=variant_id,
        algorithm=Algorithm.ENGINE,
        backend=Backend.CUDA if variant_id.startswith("cuda.") else Backend.CUDNN_GRAPH,
        is_deterministic=variant_id not in {"cudnn.graph.eng4", "cudnn.graph.eng5"},
        why_not=all_of(stride_1, *rules),
        workspace_bytes=no_workspace if variant_id.startswith("cuda.") else unknown,
        source="made up",
    )


CATALOGUE = {variant_id: _variant(variant_id) for variant_id in LAWS} | {
    "cuda.cuconv": _variant("cuda.cuconv", layout_is(Layout.NCHW)),
    "cuda.winograd_fused": _variant("cuda.winograd_fused", filter_is((3, 3)), layout_is(Layout.NCHW)),
}


def workspace_bytes(variant: str, problem: ConvProblem) -> int:
    """Scratch memory by the law."""
    return int(problem.bytes * LAWS[variant].extra_traffic) if variant.startswith("cudnn.") else 0


def outcome(variant: str, problem: ConvProblem) -> Outcome:
    """What happens to an attempt."""
    if CATALOGUE[variant].why_not(problem, DEVICE):
        return Outcome.NOT_APPLICABLE
    is_transform = variant in {"cudnn.fft_tiling", "cudnn.winograd_nonfused"}
    if is_transform and (problem.layout is Layout.NHWC or problem.r not in (3, 5)):
        return Outcome.NOT_SUPPORTED
    if variant in {"cudnn.graph.eng1", "cudnn.graph.eng2"} and problem.c % 4:
        return Outcome.NOT_SUPPORTED
    if workspace_bytes(variant, problem) > 2**30:
        return Outcome.WORKSPACE_EXCEEDED
    return Outcome.MEASURED


def true_time_ms(variant: str, problem: ConvProblem, quirk: float = 0.05) -> float:
    """The law times a quirk of this variant at this problem, the same every time."""
    digest = hashlib.sha256(f"{variant} {problem.key}".encode()).digest()
    uniform = (int.from_bytes(digest[:8]) + 1) / (2**64 + 2)
    return LAWS[variant].time_ms(problem) * math.exp(quirk * math.log(uniform / (1 - uniform)) / 1.8)


def problems(
    layers: Iterable[str],
    batches: Iterable[int] = (1, 8, 32, 128),
    dtypes: Iterable[str] = ("float32", "float16"),
    layouts: Iterable[str] = ("nchw", "nhwc"),
) -> list[ConvProblem]:
    """Every layer in every batch, dtype and layout."""
    batches, dtypes, layouts = tuple(batches), tuple(dtypes), tuple(layouts)
    return [
        ConvProblem.parse(layer, n=n, dtype=dtype, layout=layout)
        for layer in layers
        for n in batches
        for dtype in dtypes
        for layout in layouts
    ]


def all_problems() -> list[ConvProblem]:
    """Every layer of `LAYERS` in four batches, two dtypes and both layouts."""
    return problems(layer for network in LAYERS.values() for layer in network)


def picks(attempted: Iterable[ConvProblem]) -> pa.Table:
    """A rule that always says the same, right or wrong."""
    return picks_to_table(Pick(each, DEVICE, "cudnn.heuristic_v7", "cudnn.winograd_nonfused") for each in attempted)


def table(
    attempted: Iterable[ConvProblem], quirk: float = 0.05, seed: int = 0, measured_at: datetime = MEASURED_AT
) -> pa.Table:
    """A sweep of every variant over these problems, five samples each."""
    rng = np.random.default_rng(seed)
    return measurements_to_table(
        replace(_measurement(variant, problem, quirk, rng.normal(1, 0.003, 5)), measured_at=measured_at)
        for problem in attempted
        for variant in LAWS
    )


def _measurement(variant: str, problem: ConvProblem, quirk: float, noise: np.ndarray) -> Measurement:
    happened = outcome(variant, problem)
    is_measured = happened is Outcome.MEASURED
    never_asked = happened in (Outcome.NOT_APPLICABLE, Outcome.NOT_SUPPORTED)
    return Measurement(
        problem=problem,
        variant=variant,
        device=DEVICE,
        outcome=happened,
        detail="" if is_measured else "the library says no",
        samples_ms=tuple((true_time_ms(variant, problem, quirk) * noise).tolist()) if is_measured else (),
        workspace_bytes=None if never_asked else workspace_bytes(variant, problem),
        max_error=1e-6 if is_measured else None,
        run_id="made up",
    )
