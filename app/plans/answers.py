"""Answers about plans: JSON and comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any, Final

from typing_extensions import TypedDict

from conv_advisor.app.wire.answers.problems import ProblemAnswer, problem_answer
from conv_advisor.models.planning.layouts import Conversion
from conv_advisor.models.planning.plan import Layer, Plan, Rival, Total


class PlannedLayerAnswer(TypedDict):
    """Convolutions of a network that are the same layer: how often, by what variant, and what they take.

    PyTorch's default is that in NCHW, cuDNN's best that in the layer's own layout.
    """

    problem: ProblemAnswer
    count: int
    n_weights: int
    names: list[str]
    variant: str
    time_ms: float
    source: str
    total_ms: float
    share: float
    workspace_bytes: int | None
    epilogue_is_counted: bool
    pytorch_default_speedup: float | None
    cudnn_best_speedup: float | None


class ConversionAnswer(TypedDict):
    """A tensor that is brought into another layout; what that takes is an estimate."""

    tensor: str
    to: str
    bytes: int
    time_ms: float


class LeftOutAnswer(TypedDict):
    """An operator that the plan's times lack, and why."""

    name: str
    kind: str
    reason: str


class TotalAnswer(TypedDict):
    """What somebody else takes for the same convolutions, and how their times are known; speedup is the plan's."""

    time_ms: float | None
    speedup: float | None
    n_measured: int
    n_predicted: int
    n_unknown: int


class RivalsAnswer(TypedDict):
    """What a plan is held against: PyTorch as it comes, with cudnn.benchmark and in channels_last; cuDNN's choices.

    cudnn_heuristic is its first choice, cudnn_best its best.
    """

    pytorch_default: TotalAnswer
    pytorch_benchmark: TotalAnswer
    pytorch_channels_last: TotalAnswer
    cudnn_heuristic: TotalAnswer
    cudnn_best: TotalAnswer


class PlanAnswer(TypedDict):
    """A plan: its layers as the network meets them, the conversions between them, and what that gains."""

    network: str
    batch: int
    device: str
    model: str | None
    time_ms: float
    convolutions_ms: float
    conversions_ms: float
    workspace_bytes: int | None
    n_convolutions: int
    layers: list[PlannedLayerAnswer]
    conversions: list[ConversionAnswer]
    left_out: list[LeftOutAnswer]
    against: RivalsAnswer
    remarks: list[str]


class PlansAnswer(TypedDict):
    """Plans of one network, in the order of the batches that were asked for."""

    plans: list[PlanAnswer]


def plan_answer(plan: Plan, batch: int) -> PlanAnswer:
    """A plan with all its fields."""
    return {
        "network": plan.network.name,
        "batch": batch,
        "device": plan.device_id,
        "model": plan.model_id,
        "time_ms": plan.time_ms,
        "convolutions_ms": plan.convolutions_ms,
        "conversions_ms": plan.conversions_ms,
        "workspace_bytes": plan.workspace_bytes,
        "n_convolutions": plan.n_convolutions,
        "layers": [_layer(layer) for layer in plan.layers],
        "conversions": [_conversion(conversion) for conversion in plan.conversions],
        "left_out": [
            {"name": operator.name, "kind": operator.kind, "reason": operator.reason} for operator in plan.left_out
        ],
        "against": {
            "pytorch_default": _total(plan.rivals[Rival.PYTORCH_DEFAULT]),
            "pytorch_benchmark": _total(plan.rivals[Rival.PYTORCH_BENCHMARK]),
            "pytorch_channels_last": _total(plan.rivals[Rival.PYTORCH_CHANNELS_LAST]),
            "cudnn_heuristic": _total(plan.rivals[Rival.CUDNN_HEURISTIC]),
            "cudnn_best": _total(plan.rivals[Rival.CUDNN_BEST]),
        },
        "remarks": list(plan.remarks),
    }


def plans_answer(plans: Mapping[int, Plan]) -> PlansAnswer:
    """Plans by batch."""
    return {"plans": [plan_answer(plan, batch) for batch, plan in plans.items()]}


def plan_csv(plans: Mapping[int, Plan]) -> str:
    """The layers of plans by batch, one per line."""
    file = StringIO()
    writer = csv.DictWriter(file, PLAN_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(plan_rows(plans))
    return file.getvalue()


def plan_rows(plans: Mapping[int, Plan]) -> Iterator[dict[str, Any]]:
    """The layers of plans by batch, and the operators left out; each row has those of `PLAN_COLUMNS` that apply."""
    for batch, plan in plans.items():
        for layer in plan.layers:
            yield {"batch": batch, **_row(layer)}
        for operator in plan.left_out:
            yield {"batch": batch, "names": operator.name, "left_out": operator.reason}


PLAN_COLUMNS: Final = (
    *("batch", "layer", "dtype", "layout", "epilogue", "count", "variant", "time_ms", "source", "total_ms", "share"),
    *("workspace_bytes", "pytorch_default_speedup", "cudnn_best_speedup", "names", "left_out"),
)


def _row(layer: Layer) -> dict[str, Any]:
    answer, problem = _layer(layer), layer.problem
    row: dict[str, Any] = {name: value for name, value in answer.items() if name in PLAN_COLUMNS}
    row |= {"layer": problem.plain.short, "dtype": problem.dtype, "layout": problem.layout}
    return row | {"epilogue": str(problem.epilogue), "names": "; ".join(layer.names)}


def _layer(layer: Layer) -> PlannedLayerAnswer:
    best = layer.advice.best
    return {
        "problem": problem_answer(layer.problem),
        "count": layer.count,
        "n_weights": layer.n_weights,
        "names": list(layer.names),
        "variant": best.variant,
        "time_ms": best.time_ms,
        "source": best.source,
        "total_ms": layer.total_ms,
        "share": layer.share,
        "workspace_bytes": best.workspace_bytes,
        "epilogue_is_counted": layer.problem == layer.advice.problem,
        "pytorch_default_speedup": layer.speedup,
        "cudnn_best_speedup": layer.advice.baselines.cudnn_best.speedup,
    }


def _conversion(conversion: Conversion) -> ConversionAnswer:
    return {
        "tensor": conversion.tensor,
        "to": conversion.to,
        "bytes": conversion.n_bytes,
        "time_ms": conversion.time_ms,
    }


def _total(total: Total) -> TotalAnswer:
    return {
        "time_ms": total.time_ms,
        "speedup": total.speedup,
        "n_measured": total.n_measured,
        "n_predicted": total.n_predicted,
        "n_unknown": total.n_unknown,
    }
