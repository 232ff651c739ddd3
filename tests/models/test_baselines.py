"""What the advised variant is up against: what is measured, what is predicted, and what cannot be known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks import habits as benchmark
from conv_advisor.data.errors import ModelRejected
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import Shipped, problem_of
from conv_advisor.models.advice import habits
from conv_advisor.models.advice.advice import Exclusion
from conv_advisor.models.advice.baselines import Baselines, Rivals
from conv_advisor.models.advice.habits import HEURISTIC, Habits, habits_of
from conv_advisor.models.ranking.candidates import Choice, Source
from conv_advisor.models.tree.features import FEATURES, features
from tests.fakes import SMALL_DEVICE

GPU = replace(SMALL_DEVICE, id="made-up", kind="cuda")
SHIPPED = "nvidia-h200"
PROBLEM = ConvProblem.parse("14-1-3-256-128")
BATCH = FEATURES.index("log2_n")

HABITS = Habits(
    format=habits.FORMAT,
    device_id=GPU.id,
    software="torch 2.11.0, its cuDNN 91900; driver 1",
    features=list(FEATURES),
    variants=["cudnn.gemm", "cudnn.graph.eng1", "cudnn.graph.eng2"],
    feature=[BATCH, -1, -1],
    threshold=[3.5, 0.0, 0.0],
    left=[1, -1, -1],
    right=[2, -1, -1],
    choices=[[], [2, 1], [0]],
    n_asked=100,
    share_right=0.8,
    share_near=0.9,
    n_beside=50,
    share_beside=0.99,
    n_tuned=40,
    share_tuned=0.6,
    tuned_ratio=1.05,
    default_ms={"14-2-3-256-128-float32-nchw": 0.5},
    tuned_ms={"14-2-3-256-128-float32-nchw": 0.4},
)
"""Up to batch 11 the heuristic chooses engine 2, sometimes engine 1; beyond, GEMM."""


def choice(variant: str, time_ms: float, source: Source = Source.MEASURED, uncertainty: float = 0.01) -> Choice:
    return Choice(variant, time_ms, source, 1.0, uncertainty, False, 0, True)


RANKING = (
    choice("cuda.pointwise", 0.1),
    choice("cudnn.graph.eng1", 0.2, Source.PREDICTED),
    choice("cudnn.gemm", 0.3),
)


def beside(
    problem: ConvProblem = PROBLEM,
    ranking: tuple[Choice, ...] = RANKING,
    *,
    known: Habits | None = HABITS,
    excluded: tuple[Exclusion, ...] = (),
    picked: str | None = None,
) -> Baselines:
    chosen = {HEURISTIC: picked} if picked else {}
    return Rivals(GPU, known).beside(problem, ranking, excluded, features(problem), chosen)


def test_the_best_of_cudnn_is_the_fastest_of_its_own() -> None:
    best = beside().cudnn_best
    assert (best.variant, best.time_ms, best.source) == ("cudnn.graph.eng1", 0.2, Source.PREDICTED)
    assert best.speedup == pytest.approx(2)


def test_advice_that_is_tied_may_be_slower_than_cudnn() -> None:
    ranking = (choice("cuda.pointwise", 0.101), choice("cudnn.gemm", 0.1))
    best = beside(ranking=ranking).cudnn_best
    assert best.speedup == pytest.approx(0.1 / 0.101)


def test_a_first_launch_is_no_baseline() -> None:
    ranking = (RANKING[0], choice("cudnn.gemm", 0.2, uncertainty=1.0))
    baselines = beside(ranking=ranking, picked="cudnn.gemm")
    assert baselines.cudnn_best.time_ms is None
    assert baselines.cudnn_heuristic.time_ms is None
    assert "first launch" in baselines.cudnn_heuristic.basis


def test_the_heuristic_is_what_cudnn_said_of_this_layer() -> None:
    asked = beside(picked="cudnn.gemm").cudnn_heuristic
    assert (asked.variant, asked.source, asked.speedup) == ("cudnn.gemm", Source.MEASURED, pytest.approx(3))
    unmeasured = beside(picked="cudnn.graph.eng1").cudnn_heuristic
    assert (unmeasured.variant, unmeasured.source) == ("cudnn.graph.eng1", Source.PREDICTED)


def test_a_choice_that_is_out_has_no_time_and_says_why() -> None:
    out = Exclusion("cudnn.graph.eng7", "workspace is 9 bytes, above the limit of 8")
    baselines = beside(picked=out.variant, excluded=(out,))
    for baseline in (baselines.cudnn_heuristic, baselines.pytorch_default):
        assert (baseline.variant, baseline.time_ms, baseline.source, baseline.speedup) == (None, None, None, None)
        assert out.variant in baseline.basis
        assert out.reason in baseline.basis


def test_a_heuristic_that_was_not_asked_is_predicted_whatever_is_measured() -> None:
    small, large = (beside(ConvProblem.parse(f"14-{n}-3-256-128")).cudnn_heuristic for n in (8, 16))
    assert (small.variant, small.source) == ("cudnn.graph.eng1", Source.PREDICTED)  # engine 2 does not run here
    assert (large.variant, large.source) == ("cudnn.gemm", Source.PREDICTED)
    assert "80%" in large.basis
    assert "90%" in large.basis


def test_pytorch_is_measured_where_it_was_timed_and_does_not_say_what_it_ran() -> None:
    baselines = beside(ConvProblem.parse("14-2-3-256-128"))
    default, tuned = baselines.pytorch_default, baselines.pytorch_benchmark
    assert (default.variant, default.time_ms, default.source) == (None, 0.5, Source.MEASURED)
    assert default.speedup == pytest.approx(5)
    assert (tuned.variant, tuned.time_ms, tuned.source) == (None, 0.4, Source.MEASURED)
    assert tuned.speedup == pytest.approx(4)


def test_pytorch_elsewhere_is_predicted_from_the_heuristic_and_never_called_measured() -> None:
    baselines = beside(picked="cudnn.gemm")
    assert baselines.cudnn_heuristic.source is Source.MEASURED
    default = baselines.pytorch_default
    assert (default.variant, default.time_ms, default.source) == ("cudnn.gemm", 0.3, Source.PREDICTED)


def test_benchmark_mode_elsewhere_is_predicted_as_the_fastest_engine_though_that_is_measured() -> None:
    ranking = (RANKING[0], choice("cudnn.gemm", 0.2), choice("cudnn.graph.eng1", 0.3), choice("cudnn.graph.eng2", 0.4))
    tuned = beside(ranking=ranking).pytorch_benchmark
    assert (tuned.variant, tuned.time_ms, tuned.source) == ("cudnn.graph.eng1", 0.3, Source.PREDICTED)
    assert tuned.speedup == pytest.approx(3)
    assert "60% of 40 problems, and 1.05 times as long" in tuned.basis


def test_benchmark_mode_is_unknown_where_no_engine_runs() -> None:
    tuned = beside(ranking=(RANKING[0], RANKING[2])).pytorch_benchmark
    assert tuned.time_ms is None
    assert "no engine" in tuned.basis


@pytest.mark.parametrize(("layout", "is_known"), [(Layout.NCHW, False), (Layout.NHWC, True)])
def test_pytorchs_own_depthwise_kernel_is_not_guessed_at(layout: Layout, is_known: bool) -> None:
    depthwise = ConvProblem(8, 32, 14, 14, 32, 3, 3, pad_h=1, pad_w=1, groups=32, layout=layout)
    baselines = beside(depthwise)
    for pytorchs in (baselines.pytorch_default, baselines.pytorch_benchmark):
        assert (pytorchs.time_ms is not None) is is_known
        assert ("depthwise kernel of its own" in pytorchs.basis) is not is_known


def test_where_nobody_looked_nothing_is_guessed() -> None:
    baselines = beside(known=None)
    assert baselines.cudnn_best.time_ms == 0.2
    assert (baselines.cudnn_heuristic.time_ms, baselines.pytorch_default.time_ms) == (None, None)
    assert baselines.pytorch_benchmark.time_ms is None
    assert beside(known=None, picked="cudnn.gemm").cudnn_heuristic.source is Source.MEASURED


@pytest.mark.parametrize("device_id", ["9" * 4_000, f"../peers/{SHIPPED}", "", ".", "a\0b"])
def test_an_id_is_no_path(device_id: str) -> None:
    assert habits_of(device_id) is None


def test_a_cpu_has_no_such_baselines() -> None:
    baselines = Rivals(SMALL_DEVICE, None).beside(PROBLEM, (choice("cpu.direct", 1.0),), (), features(PROBLEM), {})
    for of_cudnn in (baselines.cudnn_best, baselines.cudnn_heuristic):
        assert of_cudnn.time_ms is None
        assert of_cudnn.basis == f"it does not run on {SMALL_DEVICE.id}, which is no GPU"
    for of_pytorch in (baselines.pytorch_default, baselines.pytorch_benchmark):
        assert (of_pytorch.time_ms, of_pytorch.basis) == (None, "PyTorch was not timed on this device")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 1}, "format is 1"),
        ({"features": ["n"]}, "1 features"),
        ({"left": [0, -1, -1]}, "node 0"),
        ({"right": [3, -1, -1]}, "node 0"),
        ({"feature": [len(FEATURES), -1, -1]}, "node 0"),
        ({"choices": [[], [3], [0]]}, "node 1"),
        ({"choices": [[], [], [0]]}, "node 1"),
        ({"threshold": [1.0]}, "several lengths"),
        ({"feature": [], "threshold": [], "left": [], "right": [], "choices": []}, "several lengths"),
    ],
)
def test_a_file_that_leads_nowhere_is_refused(tmp_path, changes, reason) -> None:
    path = tmp_path / "made-up.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(HABITS, **changes)))
    with pytest.raises(ModelRejected, match=reason):
        habits.read(path)


def test_a_file_that_is_none_is_refused(tmp_path) -> None:
    path = tmp_path / "made-up.json"
    path.write_text("{}")
    with pytest.raises(ModelRejected, match=r"made-up\.json"):
        habits.read(path)


def test_what_ships_knows_most_of_what_the_heuristic_chose() -> None:
    known, table = habits_of(SHIPPED), Shipped().table(SHIPPED)
    assert known is not None
    assert table is not None
    keys = table.keys[:: len(table.keys) // 2000]
    picks = {key: chosen for key in keys if (chosen := table.picked(key).get(HEURISTIC))}
    right = [known.likely(features(problem_of(key)))[0] == chosen for key, chosen in picks.items()]
    assert len(right) > 500
    assert np.mean(right) > known.share_right - 0.05


def test_what_ships_says_of_pytorch_is_what_was_timed() -> None:
    known = habits_of(SHIPPED)
    assert known is not None
    timed = benchmark.beside(habits.FOLDER / f"{SHIPPED}.parquet")
    assert (known.n_beside, known.share_beside) == (timed.n_problems, pytest.approx(timed.share))
    assert known.default_ms == timed.default_ms
    assert known.tuned_ms == timed.tuned_ms
    assert known.tuned_ms.keys() == known.default_ms.keys()
    assert known.share_beside > 0.95
    assert known.software == timed.software


@pytest.mark.slow
def test_what_ships_says_of_benchmark_mode_is_what_was_timed_beside_engines() -> None:
    known = habits_of(SHIPPED)
    assert known is not None
    tuned = benchmark.beside_engines(SHIPPED, known.tuned_ms)
    assert (known.n_tuned, known.share_tuned) == (tuned.n_problems, pytest.approx(tuned.share))
    assert known.tuned_ratio == pytest.approx(tuned.ratio)


def test_every_dtype_and_layout_of_what_ships_has_a_likely_choice() -> None:
    known = habits_of(SHIPPED)
    assert known is not None
    for dtype in DType:
        for layout in Layout:
            named = known.likely(features(replace(PROBLEM, dtype=dtype, layout=layout)))
            assert named[0].startswith("cudnn.graph.eng")


def test_the_page_says_of_what_ships_what_its_file_says() -> None:
    known = habits_of(SHIPPED)
    assert known is not None
    page = " ".join((Path(__file__).parents[2] / "docs" / "advice.md").read_text().split())
    assert f"its {known.n_asked:,} choices" in page
    assert f"a tree of {known.feature.count(-1)} leaves" in page
    assert f"choice in {known.share_right:.1%}".replace("%", " %") in page
    assert f"as long in {known.share_near:.1%}".replace("%", " %") in page
    assert f"Of {known.n_beside:,} problems" in page
    assert "within 5 % in " + f"{known.share_beside:.1%}".replace("%", " %") in page
    assert f"on {known.n_tuned:,} problems within 5 % in " + f"{known.share_tuned:.1%}".replace("%", " %") in page
    assert f"{known.tuned_ratio:.3f} times as long in the mean" in page
    assert f"({len(known.default_ms):,} problems)" in page
