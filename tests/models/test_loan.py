"""A tree lent to a GPU that has none: whose it is, how its times are scaled, and what is said of its sureness."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from conv_advisor.data.gpus import gpus
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.data.table import sizes_of
from conv_advisor.models.advice.advisor import Advisor
from conv_advisor.models.advice.pareto import in_other_layout, other_layout
from conv_advisor.models.planning.conversion import converter
from conv_advisor.models.ranking import endings
from conv_advisor.models.ranking.batch import predict_many
from conv_advisor.models.ranking.candidates import Source
from conv_advisor.models.ranking.endings import FORMAT, Cost, Endings
from conv_advisor.models.tree.loan import Loan, lent_to
from tests.models import hand_made
from tests.models.hand_made import CATALOGUE, MIDDLE, SMALL
from tests.models.test_advisor import measured

H200, H100, A100, RTX = (
    gpus()[name].device
    for name in ("nvidia-h200", "nvidia-h100-80gb-hbm3", "nvidia-a100-sxm4-80gb", "nvidia-geforce-rtx-3090")
)
UNHEARD_OF = Device(id="nvidia-h800x", name="NVIDIA H800X", kind="cuda", capability="9.0")
ROOFLINE = (1e9, 1e10, 1e-3)
"""A TFLOP/s, ten TB/s, a microsecond."""


def slowdown(borrower: Device, n_bytes: int, flops: float = 0.0, dtype: DType = DType.FLOAT16) -> float:
    return Loan(H200, borrower).slowdown(n_bytes, flops, dtype, ROOFLINE)


def test_a_launch_takes_as_long_everywhere() -> None:
    assert slowdown(A100, 10) == slowdown(RTX, 10) == 1.0


@pytest.mark.parametrize("dtype", DType)
def test_arithmetic_is_scaled_by_the_peak_of_its_precision(dtype: DType) -> None:
    mine, theirs = gpus()[H200.id], gpus()[RTX.id]
    assert slowdown(RTX, 1, 1e15, dtype) == pytest.approx(mine.tflops(dtype) / theirs.tflops(dtype))
    assert slowdown(H100, 1, 1e15, dtype) == pytest.approx(1.0)


def test_bytes_of_the_memory_are_scaled_by_its_bandwidth() -> None:
    assert slowdown(H100, 10**9) == pytest.approx(4800 / 3350)
    assert slowdown(RTX, 10**9) == pytest.approx(4800 / 936)


def test_bytes_of_the_cache_are_scaled_by_processors_and_clock() -> None:
    held = 40 * 2**20  # by the H200's cache, and by the H100's
    assert slowdown(H100, held) == pytest.approx(1.0)
    assert slowdown(A100, 40 * 2**20) == pytest.approx(132 * 1980 / (108 * 1410))


def test_what_one_cache_alone_holds_is_no_faster_than_the_memory_of_the_other() -> None:
    n_bytes = 40 * 2**20  # the 3090 has 6 MiB
    lent_ms = n_bytes / ROOFLINE[1]
    assert lent_ms * slowdown(RTX, n_bytes) == pytest.approx(n_bytes / 936e6)


def test_of_a_gpu_without_facts_nothing_is_scaled() -> None:
    loan = Loan(H200, UNHEARD_OF)
    assert not loan.is_scaled
    assert loan.slowdown(10**9, 1e15, DType.FLOAT32, ROOFLINE) == loan.bandwidth_ratio == 1.0
    assert "as they are" in loan.reason


def test_the_nearest_gpu_lends() -> None:
    h200, h100, a100 = (hand_made.model(device) for device in (H200, H100, A100))
    cpu = hand_made.model(replace(UNHEARD_OF, id="cpu", kind="cpu"))
    trees = [cpu, h200, h100, a100]
    assert lent_to(RTX, trees) is a100, "of one generation, if not of one architecture"
    assert lent_to(gpus()["nvidia-h100-pcie"].device, trees) is h100
    assert lent_to(A100, [cpu, h200, h100]) is h100, "whose bandwidth is nearer"
    assert lent_to(A100, [cpu]) is None
    assert lent_to(replace(UNHEARD_OF, kind="cpu"), trees) is None


def test_a_gpu_without_facts_borrows_a_ranking_of_its_own_architecture() -> None:
    toy, far = hand_made.model(), hand_made.model(replace(hand_made.DEVICE, id="far", capability="8.0"))
    assert lent_to(UNHEARD_OF, [far, toy]) is None, "and no times"
    assert lent_to(UNHEARD_OF, [far, toy], needs_times=False) is toy
    assert lent_to(UNHEARD_OF, [far], needs_times=False) is None


def advisor(borrower: Device, **changes: np.ndarray) -> Advisor:
    """A tree of the H200, lent; its roofline is 4 TB/s, so that large layers are bound by memory."""
    roofline = np.tile(np.array([1e15, 4e9, 1e-3], np.float32), (3, 1))
    return Advisor(hand_made.model(H200, roofline=roofline, **changes), borrower, variants=CATALOGUE)


def test_lent_times_are_scaled_in_every_way_to_ask() -> None:
    own, lent = advisor(H200), advisor(RTX)
    problem = ConvProblem.parse("112-64-3-64-64")
    assert problem.bytes > H200.l2_bytes
    ratio = 4800 / 936
    before, after = own.advise(problem), lent.advise(problem)
    assert after.best.time_ms == pytest.approx(ratio * before.best.time_ms)
    assert [choice.slowdown for choice in after.ranking] == pytest.approx(
        [choice.slowdown for choice in before.ranking]
    )
    assert lent.predict(problem) == (after.variant, pytest.approx(after.best.time_ms))
    many = predict_many(lent, [problem], sizes_of([problem]), max_workspace_bytes=2**30, is_deterministic=False)
    assert many == [lent.predict(problem)]
    assert (after.device_id, after.model_id) == (RTX.id, own.model.id)
    assert own.loan is None
    here_ms, there_ms = ([converter(each)(n_bytes) for n_bytes in (2**30, 2**31)] for each in (own, lent))
    assert there_ms[1] - there_ms[0] == pytest.approx(ratio * (here_ms[1] - here_ms[0])), "a launch is a launch"
    limits = {"max_workspace_bytes": 2**30, "is_deterministic": False}
    here, there = (other_layout(each, each.advise(problem), **limits) for each in (own, lent))
    assert there.least_conversion_ms == pytest.approx(ratio * here.least_conversion_ms)
    assert there.time_ms == pytest.approx(lent.advise(in_other_layout(problem)).best.time_ms)
    assert lent.only(None).loan is lent.loan


def test_a_neighbour_is_never_sure_and_says_whose_times_they_are() -> None:
    advice = advisor(H100).advise(SMALL)
    trust = advice.trust
    assert (trust.confidence, trust.is_calibrated, trust.abstains) == (None, False, False)
    assert trust.borrowed_from == H200.id
    assert advice.trusted == (
        f"The confidence in {advice.variant} is unknown: NVIDIA H100 80GB HBM3 has no tree of its own, and predicted "
        "times are those of NVIDIA H200, scaled by the published figures of both. Measure the layer to know."
    )


def test_between_architectures_the_tree_abstains() -> None:
    advice = advisor(A100).advise(SMALL)
    assert (advice.trust.confidence, advice.trust.abstains) == (None, True)
    assert "compute capability is 9.0, not 8.0" in advice.trust.reason
    assert advice.trusted.startswith("The model abstains, and the ranking is a guess: NVIDIA A100-SXM4-80GB has no")


def test_what_is_measured_there_is_not_borrowed() -> None:
    everything = measured(plain=1.0, big=2.0, only_3x3=2.0, loose=2.0, shy=2.0)
    trust = advisor(A100).advise(SMALL, measured=everything).trust
    assert (trust.confidence, trust.abstains, trust.borrowed_from, trust.reason) == (1.0, False, None, None)
    some = advisor(A100).advise(SMALL, measured=measured(big=1e-6))
    assert some.best.source is Source.MEASURED
    assert (some.trust.confidence, some.trust.abstains, some.trust.borrowed_from) == (None, False, H200.id)
    assert some.trusted.startswith("cuda.big was measured, but 4 other times are guesses: NVIDIA A100")


def test_the_trees_own_device_borrows_nothing() -> None:
    trust = advisor(H200).advise(MIDDLE).trust
    assert trust.borrowed_from is None
    assert trust.confidence is not None


def test_what_epilogues_add_is_lent_too_and_bytes_take_as_long_as_here(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = Cost(1.5, 0.25, 1e-6, 0.1, 1.0, 9)
    known = {H200.id: Endings(FORMAT, H200.id, "as measured", 3, {"appended": cost})}
    monkeypatch.setattr(endings, "endings_of", lambda device_id, model=None: known.get(device_id))
    lent = endings.lent_endings(Loan(H200, RTX), hand_made.model(H200))
    assert lent.costs["appended"] == structs.replace(cost, byte_ms=pytest.approx(1e-6 * 4800 / 936))
    assert endings.lent_endings(Loan(RTX, A100), hand_made.model(RTX)) is None
    known[RTX.id] = Endings(FORMAT, RTX.id, "as measured there", 1, {})
    assert endings.lent_endings(Loan(H200, RTX), hand_made.model(H200)) is known[RTX.id]
