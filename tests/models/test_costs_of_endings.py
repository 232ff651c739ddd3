"""What epilogues add, worked by hand, and advice that counts them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import hypot
from pathlib import Path

import msgspec
import pytest

from conv_advisor.data.epilogue import EVERY_EPILOGUE, Epilogue
from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.measurement import Device, Outcome
from conv_advisor.data.table import sizes_of
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import Ending, Maker
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.baselines import Baseline, Baselines, with_ending
from conv_advisor.models.ranking import endings as module
from conv_advisor.models.ranking.batch import predict_many
from conv_advisor.models.ranking.candidates import Source
from conv_advisor.models.ranking.endings import (
    CALL,
    EAGER,
    FORMAT,
    KINDS,
    TURNED_CALL,
    Cost,
    Endings,
    Work,
    eager_work,
    endings_of,
    kind_of,
    read,
    way_of,
    work_of,
)
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, MIDDLE, SMALL
from tests.models.test_advisor import summary

RELU = Epilogue(bias=True, activation="relu")
RESIDUAL = replace(RELU, residual=True)
Y_BYTES = SMALL.y_bytes

ENDS = {
    "cuda.plain": Ending.APPENDED,
    "cuda.big": Ending.FUSED,
    "cuda.only_3x3": Ending.FUSED,
    "cuda.loose": None,
    "cuda.shy": Ending.LIBRARY,
}
POOL = {name: replace(variant, ending=ENDS[name]) for name, variant in CATALOGUE.items()}
COSTS = {
    "fused": Cost(1.1, 0.0, 0.0, 0.02, 1.0, 9),
    "fused-residual": Cost(1.0, 0.0, 1.0 / Y_BYTES, 0.02, 1.0, 9),
    "appended": Cost(1.0, 2.0, 0.25 / Y_BYTES, 0.05, 1.0, 9),
    "library": Cost(1.0, 0.0, 0.0, 0.1, 1.0, 9),
    "library-residual": Cost(1.0, 0.0, 0.0, 0.1, 0.4, 9),
    EAGER: Cost(1.0, 0.5, 0.1 / Y_BYTES, 0.1, 1.0, 9),
}
ENDINGS = Endings(FORMAT, hand_made.DEVICE.id, "made up", 9, COSTS)


@pytest.fixture(scope="module")
def advisor() -> Advisor:
    return Advisor(hand_made.model(), variants=POOL, endings=ENDINGS)


def times(advice: Advice) -> dict[str, float]:
    return {choice.variant: choice.time_ms for choice in advice.ranking}


def test_each_way_to_end_has_its_kernels_and_bytes() -> None:
    residual = replace(SMALL, epilogue=RESIDUAL)
    relu = replace(SMALL, epilogue=RELU)
    assert work_of(Ending.FUSED, relu) == work_of(Ending.LIBRARY, relu) == Work(0, 0)
    assert work_of(Ending.FUSED, residual) == Work(0, Y_BYTES)
    assert work_of(Ending.APPENDED, relu) == Work(1, 2 * Y_BYTES)
    assert work_of(Ending.APPENDED, residual) == Work(1, 3 * Y_BYTES)
    assert work_of(CALL, residual) == Work(0, Y_BYTES)
    assert work_of(TURNED_CALL, residual) == Work(2, 2 * SMALL.x_bytes + 3 * Y_BYTES)
    assert eager_work(residual) == Work(3, 7 * Y_BYTES)
    assert eager_work(replace(SMALL, epilogue=Epilogue(bias=True))) == Work(1, 2 * Y_BYTES)
    assert eager_work(SMALL) == Work(0, 0)


def test_the_kind_of_a_library_knows_tensor_cores_and_every_kind_of_the_catalogue_is_one() -> None:
    assert kind_of(Ending.LIBRARY, replace(SMALL, epilogue=RESIDUAL)) == "library-residual-float32"
    assert kind_of(Ending.LIBRARY, replace(SMALL, dtype="tf32", epilogue=RELU)) == "library"
    for variant in VARIANTS.values():
        for epilogue in EVERY_EPILOGUE[1:]:
            for dtype in ("float32", "float16"):
                problem = replace(SMALL, dtype=dtype, epilogue=epilogue)
                if (way := way_of(variant, problem)) is not None:
                    assert kind_of(way, problem) in KINDS


def test_a_call_of_the_legacy_api_is_a_way_of_its_own_and_another_where_it_turns_its_tensors() -> None:
    ways = {
        (variant, layout, filters): way_of(
            VARIANTS[variant],
            replace(SMALL, dtype="float16", layout=layout, r=filters, s=filters, epilogue=RELU),
        )
        for variant in ("cudnn.implicit_precomp_gemm", "cudnn.implicit_precomp_gemm_tc")
        for layout in ("nchw", "nhwc")
        for filters in (1, 3)
    }
    assert [key for key, way in ways.items() if way == TURNED_CALL] == [("cudnn.implicit_precomp_gemm_tc", "nchw", 1)]
    assert {way for way in ways.values() if way != TURNED_CALL} == {CALL}
    silu = replace(SMALL, epilogue=Epilogue(activation="silu"))
    assert way_of(VARIANTS["cudnn.implicit_precomp_gemm_tc"], silu) == Ending.APPENDED
    assert kind_of(CALL, replace(SMALL, epilogue=RESIDUAL)) == "call-residual"
    assert kind_of(TURNED_CALL, replace(SMALL, epilogue=RESIDUAL)) == "call-turned"


def test_a_call_that_nobody_timed_costs_what_an_appended_kernel_does() -> None:
    tf32 = replace(SMALL, dtype="tf32", epilogue=RESIDUAL)
    ways = ENDINGS.ways(tf32)
    assert ways[CALL] == ways[TURNED_CALL] == ways[Ending.APPENDED]
    dear = Cost(1.0, 0.0, 2.0 / Y_BYTES, 0.1, 1.0, 9)
    timed = msgspec.structs.replace(ENDINGS, costs=COSTS | {"call-residual": dear})
    assert timed.ways(tf32)[CALL].time_ms(1.0) == pytest.approx(3.0)


def test_special_functions_cost_time_where_no_kernel_after_the_convolution_computes_them() -> None:
    gpu = Device(id="gpu", name="GPU", kind="cuda", processors=100, max_clock_mhz=1000)
    priced, n_outputs = ENDINGS.on(gpu), Y_BYTES // SMALL.dtype.itemsize_bytes
    assert priced.function_ms == pytest.approx(1 / (16 * 100 * 1e6))
    for activation, functions in {"relu": 0.0, "silu": 2.0, "sigmoid": 2.0, "gelu": 4.0, "gelu_tanh": 2.0}.items():
        problem = replace(SMALL, epilogue=Epilogue(activation=activation))
        ways, free = priced.ways(problem), ENDINGS.ways(problem)
        for way in (Ending.FUSED, Ending.LIBRARY):
            added = ways[way].time_ms(1.0) - free[way].time_ms(1.0)
            assert added == pytest.approx(functions * n_outputs * priced.function_ms)
        assert ways[Ending.APPENDED] == free[Ending.APPENDED]
    for unknown in (replace(gpu, processors=0), replace(gpu, max_clock_mhz=0), replace(gpu, kind="cpu")):
        assert ENDINGS.on(unknown) == ENDINGS


def test_a_time_with_an_epilogue_is_the_time_alone_and_what_the_ending_adds(advisor: Advisor) -> None:
    tf32 = replace(SMALL, dtype="tf32")
    alone, ended = (times(advisor.advise(replace(tf32, epilogue=each))) for each in (Epilogue(), RESIDUAL))
    assert ended == {
        "cuda.plain": pytest.approx(alone["cuda.plain"] + 2.0 + 0.75),
        "cuda.big": pytest.approx(alone["cuda.big"] + 1.0),
        "cuda.only_3x3": pytest.approx(alone["cuda.only_3x3"] + 1.0),
    }
    relu = times(advisor.advise(replace(tf32, epilogue=RELU)))
    assert relu["cuda.big"] == pytest.approx(1.1 * alone["cuda.big"])
    assert relu["cuda.shy"] == pytest.approx(alone["cuda.shy"])


def test_the_ranking_is_that_with_the_epilogue_and_says_that_it_counts(advisor: Advisor) -> None:
    plain, ended = advisor.advise(MIDDLE), advisor.advise(replace(MIDDLE, epilogue=RELU))
    assert (plain.variant, ended.variant) == ("cuda.plain", "cuda.only_3x3")  # 1, and 2 more, against 1.05 and a tenth
    assert (ended.problem.epilogue, ended.asked.epilogue, ended.uncounted) == (RELU, RELU, Epilogue())
    assert all(choice.source is Source.PREDICTED for choice in ended.ranking)
    assert ended.best.uncertainty == pytest.approx(hypot(0.1, 0.02))
    assert not ended.trust.is_calibrated
    assert plain.trust.is_calibrated is bool(advisor.model.card.get("confidence"))
    assert "not counted" not in ended.trusted


def test_variants_that_do_not_end_so_are_out_and_say_why(advisor: Advisor) -> None:
    advice = advisor.advise(replace(SMALL, dtype="tf32", epilogue=RESIDUAL))
    out = {exclusion.variant: exclusion.reason for exclusion in advice.excluded}
    assert "it computes the convolution alone" in out["cuda.loose"]
    assert out["cuda.shy"] == "predicted as not supported with bias-residual-relu: 40 % of such plans were"
    float32 = advisor.advise(replace(SMALL, epilogue=RELU))
    assert (
        "what that adds to the convolution is unknown"
        in {exclusion.variant: exclusion.reason for exclusion in float32.excluded}["cuda.shy"]
    )
    only_3x3 = advisor.advise(replace(MIDDLE, r=1, s=1, pad_h=0, pad_w=0, pad_h_end=0, pad_w_end=0, epilogue=RELU))
    assert {exclusion.variant: exclusion.reason for exclusion in only_3x3.excluded}[
        "cuda.only_3x3"
    ] == "filter is 1x1, not 3x3"


def test_a_measured_time_of_the_same_epilogue_counts_before_and_scales_the_others(advisor: Advisor) -> None:
    problem = replace(MIDDLE, epilogue=RELU)
    predicted = times(advisor.advise(problem))
    known = {"cuda.big": summary("cuda.big", 3 * predicted["cuda.big"])}
    advice = advisor.advise(problem, measured=known)
    by_variant = {choice.variant: choice for choice in advice.ranking}
    assert (by_variant["cuda.big"].source, by_variant["cuda.big"].time_ms) == ("measured", 3 * predicted["cuda.big"])
    assert by_variant["cuda.plain"].time_ms == pytest.approx(3 * predicted["cuda.plain"])
    refused = {"cuda.only_3x3": replace(summary("cuda.only_3x3", None), outcome=Outcome.NOT_SUPPORTED, detail="no")}
    reasons = {exclusion.variant: exclusion.reason for exclusion in advisor.advise(problem, measured=refused).excluded}
    assert reasons["cuda.only_3x3"] == "not supported: no"


def test_a_measured_time_of_the_convolution_alone_counts_with_what_the_epilogue_adds(advisor: Advisor) -> None:
    known = {"cuda.big": summary("cuda.big", 0.5)}
    ranked = {choice.variant: choice for choice in advisor.advise(replace(SMALL, epilogue=RELU), alone=known).ranking}
    assert (ranked["cuda.big"].time_ms, ranked["cuda.big"].source) == (pytest.approx(0.55), Source.PREDICTED)


@pytest.mark.parametrize("epilogue", [RELU, RESIDUAL, Epilogue(activation="silu")], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "tf32"])
def test_what_is_predicted_alone_is_what_advice_puts_first(advisor: Advisor, epilogue: Epilogue, dtype: str) -> None:
    problems = [
        replace(each, dtype=dtype, epilogue=epilogue) for each in (SMALL, MIDDLE, hand_made.LARGE, hand_made.POINTWISE)
    ]
    for limit, is_deterministic in ((2**30, False), (0, True)):
        bounds = {"max_workspace_bytes": limit, "is_deterministic": is_deterministic}
        best = [advisor.advise(problem, **bounds).best for problem in problems]
        expected = [(choice.variant, pytest.approx(choice.time_ms)) for choice in best]
        assert [advisor.predict(problem, **bounds) for problem in problems] == expected
        assert predict_many(advisor, problems, sizes_of(problems), **bounds) == expected


def test_without_costs_advice_is_that_on_the_convolution_alone() -> None:
    advisor = Advisor(hand_made.model(), variants=POOL)
    advice = advisor.advise(replace(SMALL, epilogue=RELU))
    assert (advice.uncounted, advice.problem, advice.ranking) == (RELU, SMALL, advisor.advise(SMALL).ranking)
    assert not advisor.counts(replace(SMALL, epilogue=RELU))
    known = {"cuda.big": summary("cuda.big", 0.5)}
    assert advisor.advise(replace(SMALL, epilogue=RELU), measured=known).problem.epilogue == RELU


def test_where_nobody_ends_so_advice_is_that_on_the_convolution_alone() -> None:
    advisor = Advisor(hand_made.model(), variants=CATALOGUE, endings=ENDINGS)
    assert advisor.advise(replace(SMALL, epilogue=RELU)).uncounted == RELU


def test_the_advice_of_one_maker_counts_epilogues_too(advisor: Advisor) -> None:
    assert advisor.only(Maker.CUDNN).counts(replace(SMALL, epilogue=RELU))
    advice = advisor.only(Maker.CUDNN).advise(replace(SMALL, dtype="tf32", epilogue=RELU))
    assert [choice.variant for choice in advice.ranking] == ["cuda.shy"]
    plain = advisor.only(Maker.CUDNN).advise(replace(SMALL, dtype="tf32"))
    assert advice.excluded == plain.excluded


def test_others_end_by_fused_plans_and_by_a_kernel_a_step() -> None:
    problem = replace(SMALL, dtype="tf32", epilogue=RELU)
    best = Baseline("cudnn.a", 2.0, Source.PREDICTED, 1.0, "the fastest")
    measured = replace_source(best, Source.MEASURED)
    alone = Baseline(None, 3.0, Source.MEASURED, 1.5, "timed in another run")
    baselines = with_ending(
        Baselines(best, measured, best, measured), Baselines(best, best, alone, alone), problem, ENDINGS, 2.0
    )
    assert baselines.cudnn_best.basis == "the fastest; what bias-relu adds is predicted"  # as fast as a fused plan
    assert (baselines.cudnn_heuristic.variant, baselines.cudnn_heuristic.time_ms) == (None, 2.0)
    time_ms = 3.0 + 2 * 0.5 + 4 * 0.1
    basis = "timed in another run; bias-relu in 2 kernels after the convolution, predicted"
    default = baselines.pytorch_default
    assert (default.time_ms, default.speedup) == (pytest.approx(time_ms), pytest.approx(time_ms / 2))
    assert (default.variant, default.source, default.basis) == (None, Source.PREDICTED, basis)
    assert baselines.pytorch_benchmark == measured  # with what follows
    faster = Baselines(replace_source(best, Source.MEASURED, 1.0), best, alone, alone)
    ahead = with_ending(Baselines(best, best, best, best), faster, problem, ENDINGS, 2.0).cudnn_best
    assert (ahead.variant, ahead.time_ms, ahead.speedup, ahead.source) == (None, 1.0, 0.5, Source.PREDICTED)
    assert ahead.basis.startswith("a fused plan, by what such plans took beside cudnn.a alone on other layers")
    assert with_ending(Baselines(measured, best, best, best), faster, problem, ENDINGS, 2.0).cudnn_best == measured


def test_what_is_unknown_of_others_says_why() -> None:
    problem = replace(SMALL, epilogue=RESIDUAL)  # of which cuDNN has no fused plan without tensor cores
    best = Baseline("cudnn.a", 2.0, Source.PREDICTED, 1.0, "the fastest")
    unknown = Baseline(None, None, None, None, "why")
    baselines = with_ending(
        Baselines(best, unknown, best, best), Baselines(best, best, unknown, best), problem, ENDINGS, 2.0
    )
    assert baselines.cudnn_best.time_ms == 2.0
    assert baselines.cudnn_heuristic == unknown
    assert (baselines.pytorch_default.time_ms, baselines.pytorch_default.basis) == (None, "why")
    without = replace_costs({name: cost for name, cost in COSTS.items() if name != EAGER})
    baselines = with_ending(Baselines(*[best] * 4), Baselines(*[best] * 4), problem, without, 2.0)
    for pytorchs in (baselines.pytorch_default, baselines.pytorch_benchmark):
        assert (pytorchs.time_ms, pytorchs.basis) == (None, "what bias-residual-relu adds was not timed on this device")


def test_an_epilogue_counts_where_it_is_known_what_it_takes_to_fuse_and_to_append() -> None:
    for missing in ("fused-residual", "appended"):
        costs = replace_costs({name: cost for name, cost in COSTS.items() if name != missing})
        advisor = Advisor(hand_made.model(), variants=POOL, endings=costs)
        assert advisor.advise(replace(SMALL, epilogue=RESIDUAL)).uncounted == RESIDUAL
        assert advisor.counts(replace(SMALL, epilogue=RELU)) is (missing == "fused-residual")


def replace_source(baseline: Baseline, source: Source, time_ms: float | None = None) -> Baseline:
    return Baseline(baseline.variant, time_ms or baseline.time_ms, source, baseline.speedup, baseline.basis)


def replace_costs(costs: dict[str, Cost]) -> Endings:
    return Endings(FORMAT, ENDINGS.device_id, "made up", 9, costs)


BROKEN = {
    "another format": ({"format": 2}, "format is 2"),
    "an unknown kind": (
        {"costs": {"guessed": json.loads('{"factor":1,"kernel_ms":0,"byte_ms":0,"spread":0,"share":1,"n_times":1}')}},
        "guessed",
    ),
    "a gain": (
        {"costs": {"fused": {"factor": 0.9, "kernel_ms": 0, "byte_ms": 0, "spread": 0, "share": 1, "n_times": 1}}},
        "faster",
    ),
    "a negative price": (
        {"costs": {"fused": {"factor": 1, "kernel_ms": 0, "byte_ms": -1, "spread": 0, "share": 1, "n_times": 1}}},
        "faster",
    ),
    "no costs": ({"costs": None}, "costs"),
}


@pytest.mark.parametrize(("change", "said"), BROKEN.values(), ids=BROKEN)
def test_a_file_that_is_not_what_was_written_is_rejected(tmp_path: Path, change: dict, said: str) -> None:
    good = {"format": FORMAT, "device_id": "toy-gpu", "software": "made up", "n_layers": 9, "costs": {}}
    path = tmp_path / "toy-gpu.json"
    path.write_text(json.dumps(good | change))
    with pytest.raises(ModelRejected, match=said):
        read(path)
    path = tmp_path / "good.json"
    path.write_text(json.dumps(good))
    assert read(path).costs == {}


def test_an_id_is_looked_up_and_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_files", lambda: {"toy-gpu": tmp_path / "toy-gpu.json"})
    assert endings_of("../toy-gpu") is endings_of("other") is None
    with pytest.raises(ModelRejected):
        endings_of("toy-gpu")
