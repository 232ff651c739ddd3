"""Shipped tables: what is packed comes out again, and what is broken is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from conv_advisor.data import packing, parquet
from conv_advisor.data.block import compress_text
from conv_advisor.data.errors import InvalidInput, StoreError
from conv_advisor.data.measurement import L2State, Measurement, Outcome
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.data.shipped import TIMINGS, Shipped, ShippedTable, problem_of
from conv_advisor.data.summary import summarise
from tests.data import arrow
from tests.data.stored import BARE, CPU, ENDING_MEASUREMENTS, ENDING_PICKS, H200, LAYER, MEASURED, STRIDED
from tests.data.stored import PICKS as ALL_PICKS

PICKS = [pick for pick in ALL_PICKS if pick.device.id == H200.id]
NEWER = replace(H200, versions={"driver": "999"})
ROWS = [
    MEASURED,
    replace(MEASURED, samples_ms=(0.5, 0.75), plan={}, run_id="sweep-2", device=NEWER, workspace_bytes=None),
    BARE,
    replace(BARE, variant="cuda.winograd", outcome=Outcome.NOT_SUPPORTED, detail=""),
    replace(MEASURED, problem=STRIDED, outcome=Outcome.WRONG_RESULT, samples_ms=(), max_error=math.inf),
    *(
        replace(
            MEASURED,
            problem=replace(LAYER, n=n),
            outcome=Outcome.PRUNED,
            detail=f"first launch took {n}.5e-3 ms, the best so far 0.{n} ms",
            samples_ms=(1.0,),
            max_error=1e-3 * n,
        )
        for n in range(2, 130)
    ),
]


def packed(folder: Path, rows: list[Measurement], *, name: str = "rows", onto: packing.Contents | None = None) -> Path:
    parquet.write(arrow.measurements_to_table(rows), folder / f"{name}.parquet")
    contents = packing.added(onto or packing.empty(), folder / f"{name}.parquet", H200.id)
    packing.write(contents, folder / f"{H200.id}.safetensors", H200.id)
    return folder / f"{H200.id}.safetensors"


def test_what_is_packed_comes_out_again(tmp_path: Path) -> None:
    table = ShippedTable(packed(tmp_path, ROWS))
    assert sorted(table.keys) == sorted({row.problem.key for row in ROWS})
    assert table.device == NEWER
    for row in ROWS:
        (attempt,) = [
            each
            for each in table.attempts(row.problem.key)
            if (each.variant, each.outcome, each.n_samples) == (row.variant, row.outcome, len(row.samples_ms))
        ]
        assert (attempt.detail, json.loads(attempt.plan)) == (row.detail, row.plan)
        assert (attempt.time_ms, attempt.workspace_bytes) == (row.time_ms, row.workspace_bytes)
        assert attempt.noise == (pytest.approx(row.noise, rel=2**-8) if row.samples_ms else None)
        assert attempt.max_error == (None if row.max_error is None else pytest.approx(row.max_error, rel=2**-8))
        assert attempt.measured_at_us == int(row.measured_at.timestamp()) * 1_000_000
    assert table.attempts("9-9-9-9-9-float32-nchw") == []
    assert table.measured_keys() == [LAYER.key]


def test_epilogues_and_uneven_padding_come_out_again(tmp_path: Path) -> None:
    parquet.write(arrow.picks_to_table(ENDING_PICKS), tmp_path / "picks.parquet")
    contents = packing.added(packing.empty(), tmp_path / "picks.parquet", H200.id)
    table = ShippedTable(packed(tmp_path, ENDING_MEASUREMENTS, onto=contents))
    problems = {row.problem for row in ENDING_MEASUREMENTS}
    assert set(table.problems()) == set(parquet.distinct_problems(packing.attempts_of(table))[0]) == problems
    assert {pick.problem for pick in arrow.table_to_picks(packing.picks_of(table))} == {
        pick.problem for pick in ENDING_PICKS
    }


def test_columns_are_those_that_were_packed_and_packing_them_again_changes_nothing(tmp_path: Path) -> None:
    path = packed(tmp_path, ROWS)
    columns, content = packing.attempts_of(ShippedTable(path)), path.read_bytes()
    assert columns.schema == parquet.ATTEMPTS
    given = parquet.to_attempts(arrow.measurements_to_table(ROWS), "rows")
    for name in set(parquet.ATTEMPTS.names) - {"noise", "max_error", "measured_at", "device"}:
        assert sorted(map(repr, columns[name].to_pylist())) == sorted(map(repr, given[name].to_pylist())), name
    packing.write(packing.contents_of(ShippedTable(path)), tmp_path / "again.safetensors", H200.id)
    assert (tmp_path / "again.safetensors").read_bytes() == content


def test_a_file_is_added_once_and_picks_beside_it(tmp_path: Path) -> None:
    parquet.write(arrow.picks_to_table(PICKS), tmp_path / "some-picks.parquet")
    contents = packing.contents_of(ShippedTable(packed(tmp_path, ROWS[:3])))
    contents = packing.added(contents, tmp_path / "some-picks.parquet", H200.id)
    table = ShippedTable(packed(tmp_path, ROWS[:3], onto=contents))
    assert table.card.n_attempts == 3
    table = ShippedTable(packed(tmp_path, ROWS, name="more", onto=packing.contents_of(table)))
    assert table.card.n_attempts == 3 + len(ROWS)
    assert set(table.card.files.values()) == {"rows.parquet", "more.parquet", "some-picks.parquet"}
    assert arrow.table_to_picks(packing.picks_of(table)) == PICKS
    assert {run.source for run in table.card.runs} == {"", "rows", "more"}
    assert table.usual_clock_mhz == MEASURED.clock_end_mhz


def test_what_other_rules_chose_for_a_problem_comes_out_by_rule_and_the_last_counts(tmp_path: Path) -> None:
    heuristic = PICKS[-1]
    later = replace(heuristic, variant="cudnn.graph.eng5")
    parquet.write(arrow.picks_to_table([heuristic, *PICKS, later]), tmp_path / "some-picks.parquet")
    contents = packing.added(packing.empty(), tmp_path / "some-picks.parquet", H200.id)
    table = ShippedTable(packed(tmp_path, ROWS, onto=contents))
    assert table.picked(STRIDED.key) == {heuristic.source: later.variant}
    assert table.picked(LAYER.key) == {PICKS[0].source: PICKS[0].variant}
    assert table.picked(replace(LAYER, n=2).key) == table.picked("no such problem") == {}


def test_an_attempt_that_was_repeated_has_one_summary(tmp_path: Path) -> None:
    known = summarise(ShippedTable(packed(tmp_path, ROWS)).attempts(LAYER.key))
    assert known[MEASURED.variant].n_samples == 5
    assert known[MEASURED.variant].time_ms == (0.25 + 0.625) / 2


def test_a_changed_kernel_puts_new_times_in_the_place_of_its_own_at_these_problems_alone(tmp_path: Path) -> None:
    table = ShippedTable(packed(tmp_path, ROWS))
    before = {key: summarise(table.attempts(key)) for key in table.keys}
    again = replace(MEASURED, samples_ms=(0.125,), run_id="sweep-3")
    parquet.write(arrow.measurements_to_table([again]), tmp_path / "again.parquet")
    contents = packing.added(packing.contents_of(table), tmp_path / "again.parquet", H200.id, replaces=True)
    packing.write(contents, tmp_path / "new.safetensors", H200.id)
    new = ShippedTable(tmp_path / "new.safetensors")
    after = {key: summarise(new.attempts(key)) for key in new.keys}
    assert after[LAYER.key].pop(MEASURED.variant).time_ms == 0.125
    before[LAYER.key].pop(MEASURED.variant)
    assert after == before


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([replace(MEASURED, l2=L2State.COLD)], "l2 is 'cold'"),
        ([replace(MEASURED, device=CPU)], "device is 'cpu'; allowed: nvidia-h200"),
        ([], "paths is 'nothing'"),
    ],
)
def test_what_is_no_warm_measurement_of_the_device_is_not_packed(
    tmp_path: Path, rows: list[Measurement], named: str
) -> None:
    with pytest.raises(InvalidInput, match=named):
        packed(tmp_path, rows)
    with pytest.raises(InvalidInput, match="files that exist"):
        packing.added(packing.empty(), tmp_path / "missing.parquet", H200.id)


def _without_tail(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _no_table(path: Path) -> None:
    path.write_bytes(b"PAR1")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _changed(**changes: object) -> Callable[[Path], None]:
    """Other fields on the card, or other tensors."""

    def change(path: Path) -> None:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
            card = json.loads(file.metadata()["card"])
        for name, value in changes.items():
            if name in tensors:
                tensors[name] = value(tensors[name].copy())
            else:
                card[name] = value(card[name])
        save_file(tensors, path, metadata={"card": json.dumps(card)})

    return change


def _flipped(tensor: np.ndarray) -> np.ndarray:
    tensor[len(tensor) // 2] ^= 0xFF
    return tensor


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (_without_tail, "is no table of measurements"),
        (_no_table, "is no table of measurements"),
        (_empty, "is no table of measurements"),
        (_changed(format=lambda _: 2), "its format is 2; allowed: 1"),
        (_changed(n_attempts=lambda n: n + 1), "attempts; allowed"),
        (_changed(n_problems=lambda n: n - 1), "problems; allowed"),
        (_changed(keys=_flipped), "is no table of measurements"),
        (_changed(counts=_flipped), "is no table of measurements"),
        (_changed(blocks=lambda blocks: blocks[:-1]), "blocks do not follow each other"),
        (_changed(blocks=lambda blocks: blocks.astype(np.uint16)), "blocks is U16; allowed: U8"),
        (_changed(blocks=_flipped), "block "),
        (_changed(n_plans=lambda n: n - 1), "plan"),
        (_changed(plans=_flipped), "plans: "),
        (_changed(variants=lambda names: names[:1]), "variant is .*; allowed: below 1"),
        (_changed(variants=lambda names: [*names, names[0]]), "variants has a name twice"),
        (_changed(reasons=lambda reasons: reasons[:1]), "reason is .*; allowed: below 1"),
        (_changed(reasons=lambda reasons: [{**each, "detail": "x"} for each in reasons]), "one for each gap"),
        (_changed(reasons=lambda reasons: [{**each, "outcome": "luck"} for each in reasons]), "luck"),
        (_changed(runs=lambda runs: [{**each, "device": 7} for each in runs]), "a run is of no device"),
        (_changed(devices=lambda devices: [{**device, "id": "abacus"} for device in devices]), "not all nvidia-h200"),
    ],
)
def test_a_broken_table_is_refused_by_name(tmp_path: Path, spoil: Callable[[Path], None], named: str) -> None:
    path = packed(tmp_path, ROWS)
    spoil(path)
    with pytest.raises(StoreError, match=named) as refused:
        packing.contents_of(ShippedTable(path))
    assert str(path) in str(refused.value)


def test_a_problem_is_the_same_in_the_text_and_in_the_index(tmp_path: Path) -> None:
    path = packed(tmp_path, ROWS)
    known = ShippedTable(path).keys
    for key in (*known[:1], *known[-1:], *known[1:-1], "", "float32-nchw", known[0][1:], "\n".join(known[:2])):
        text, index = ShippedTable(path), ShippedTable(path)
        assert index.place.get(key) == (known.index(key) if key in known else None)
        answers = [text.attempts(key) for _ in range(9)]  # the last of them by the index
        assert all(answer == answers[0] for answer in answers)
        assert bool(answers[0]) == (key in known)
        assert text.picked(key) == index.picked(key)


def test_a_problem_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = packed(tmp_path, ROWS)
    first, second, *others = ShippedTable(path).keys
    assert first != second
    doubled = np.frombuffer(compress_text("\n".join((first, first, *others))), np.uint8)
    _changed(keys=lambda _: doubled)(path)
    with pytest.raises(StoreError, match="a problem is there twice"):
        packing.contents_of(ShippedTable(path))
    asked = ShippedTable(path)
    with pytest.raises(StoreError, match="a problem is there twice"):
        [asked.attempts(first) for _ in range(9)]


def test_a_table_of_another_device_is_refused(tmp_path: Path) -> None:
    packed(tmp_path, ROWS).rename(tmp_path / "abacus.safetensors")
    assert Shipped(tmp_path).table(H200.id) is None
    with pytest.raises(StoreError, match=f"is of {H200.id}"):
        Shipped(tmp_path).table("abacus")


@pytest.mark.parametrize(
    "problem",
    [
        LAYER,
        STRIDED,
        replace(LAYER, dtype=DType.TF32, layout=Layout.NHWC),
        ConvProblem(n=1, c=1, h=1, w=1, k=1, r=1, s=1),
    ],
)
def test_a_key_says_its_problem(problem: ConvProblem) -> None:
    assert problem_of(problem.key) == problem


def test_the_tables_that_ship_are_small_and_whole() -> None:
    shipped = Shipped()
    assert shipped.device_ids == ["nvidia-h100-80gb-hbm3", "nvidia-h200"]
    for device_id in shipped.device_ids:
        table = shipped.table(device_id)
        assert table is not None
        assert (TIMINGS / f"{device_id}.safetensors").stat().st_size <= 15e6
        assert sum(map(len, table.blocks())) == table.card.n_attempts
        assert table.picks.shape == (5, table.card.n_picks)
        assert [problem.key for problem in table.problems()] == table.keys
