"""Measurements and picks that use every field and every outcome."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.measurement import Device, L2State, Measurement, Outcome, Pick
from conv_advisor.data.problem import ConvProblem, DType, Layout

H200 = Device(
    id="nvidia-h200",
    name="NVIDIA H200",
    kind="cuda",
    capability="9.0",
    processors=132,
    memory_bytes=150_000_000_000,
    l2_bytes=62_914_560,
    shared_memory_per_block_bytes=232_448,
    max_clock_mhz=1980,
    versions={"driver": "580.159.04", "cudnn": "9.19.0"},
)
CPU = Device(id="cpu", name="Some CPU", kind="cpu", processors=2)
NOON = datetime(2026, 11, 21, 12, 0, 0, 123456, UTC)

LAYER = ConvProblem.parse("14-1-3-256-128")
STRIDED = ConvProblem(
    **{"n": 2, "c": 6, "h": 9, "w": 11, "k": 4, "r": 3, "s": 5, "stride_h": 2, "stride_w": 3, "pad_h": 1, "pad_w": 2},
    **{"dilation_h": 2, "dilation_w": 1, "groups": 2, "dtype": DType.BFLOAT16, "layout": Layout.NHWC},
)

ENDED = replace(LAYER, epilogue=Epilogue(bias=True, residual=True, activation=Activation.GELU_TANH))
UNEVEN = replace(STRIDED, pad_h_end=0, pad_w_end=3, epilogue=Epilogue(activation=Activation.RELU))

MEASURED = Measurement(
    problem=LAYER,
    variant="cudnn.graph.eng62",
    device=H200,
    outcome=Outcome.MEASURED,
    samples_ms=(0.25, 0.5, 0.125),
    workspace_bytes=2**33,
    max_error=3.1e-7,
    plan={"engine": 62, "knobs": {"2": 0, "13": 1}},
    l2=L2State.WARM,
    floor_ms=0.00055,
    clock_start_mhz=1980,
    clock_end_mhz=1965,
    measured_at=NOON,
    run_id="sweep-1",
)
BARE = Measurement(
    STRIDED, "cuda.cuconv", H200, Outcome.NOT_APPLICABLE, "stride is 2x3, not 1x1", measured_at=NOON, run_id="sweep-1"
)

MEASUREMENTS = [
    MEASURED,
    BARE,
    replace(MEASURED, problem=STRIDED, l2=L2State.COLD, max_error=float("inf"), outcome=Outcome.PRUNED),
    replace(
        MEASURED, variant="é \" ' \\ \n", detail="naïve ✓", measured_at=NOON.astimezone(timezone(timedelta(hours=5)))
    ),
    *(replace(BARE, variant=f"some.{outcome}", outcome=outcome) for outcome in Outcome if outcome != Outcome.MEASURED),
]

PICKS = [
    Pick(LAYER, H200, "cudnn.heuristic_v7", "cudnn.implicit_gemm", run_id="sweep-1"),
    Pick(STRIDED, H200, "cudnn.graph.heuristic_a", "cudnn.graph.eng62", plan={"engine": 62}),
]

ENDING_MEASUREMENTS = [MEASURED, replace(MEASURED, problem=ENDED), replace(BARE, problem=UNEVEN)]
ENDING_PICKS = [Pick(UNEVEN, H200, "cudnn.heuristic_v7", "cudnn.gemm"), Pick(ENDED, H200, "cudnn.heuristic_v7", "x")]
