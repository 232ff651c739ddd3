"""Every promising cut is timed, the rule's regret is told, and a refit finds the constants that times were made by."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.cuts import measure, refit, regret, rows
from benchmarks.cuts.__main__ import main
from benchmarks.cuts.kernels import KERNELS, applies, name_of
from conv_advisor.data.errors import NotSupported
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.cuda.grouped import menu as grouped_menu
from conv_advisor.kernels.cuda.implicit_gemm_nhwc import menu as nhwc
from conv_advisor.kernels.runner import FirstRun, Operands, Samples
from conv_advisor.kernels.variant import Launch
from tests.benchmarks.made_up import GPU
from tests.shapes import EDGE_SHAPES, edge_problem

NAME = "implicit_gemm_nhwc"
PROBLEM = ConvProblem.parse("14-8-3-256-128", dtype="float16", layout="nhwc")
H200 = replace(GPU, capability="9.0", processors=132)


class Timer:
    """A runner for launches that are nothing but their time: twice what the model expects, but for the favourite."""

    device = H200

    def __init__(self, favourite: str = "", troubles: dict[str, Exception | float] | None = None) -> None:
        self.favourite, self.troubles = favourite, troubles or {}
        self.sampled: list[str] = []

    def make_operands(self, _problem: ConvProblem, _seed: int) -> Operands:
        return SimpleNamespace()

    def first_run(self, problem: ConvProblem, launch: Launch, _operands: Operands) -> FirstRun:
        name, expected_us = launch.plan["name"], launch.plan["expected_us"]
        trouble = self.troubles.get(name, 0.0)
        if isinstance(trouble, Exception):
            raise trouble
        time_ms = expected_us / 500 if name != self.favourite else 1e-4
        return FirstRun(trouble, time_ms)

    def sample(self, _problem: ConvProblem, launch: Launch, _operands: Operands, launch_ms: float, *_: Any) -> Samples:
        self.sampled.append(launch.plan["name"])
        return Samples((launch_ms,) * 3, None, None)

    def release(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _launches_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = KERNELS[NAME]

    def launch(problem: ConvProblem, device: Any, cut: Any) -> Launch:
        plan = {"name": name_of(cut), "expected_us": kernel.expected(problem, device)[cut]}
        return Launch(lambda _x, _weight, _y: None, plan=plan)

    monkeypatch.setitem(KERNELS, NAME, replace(kernel, launch=launch))


def names_of(problem: ConvProblem = PROBLEM) -> list[str]:
    """The names of all cuts, those first that are expected to be fastest."""
    expected = KERNELS[NAME].expected(problem, H200)
    return [name_of(cut) for cut in sorted(expected, key=expected.__getitem__)]


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", EDGE_SHAPES)
def test_cuts_are_told_apart_and_their_rule_chooses_one_of_them(name: str, shape: str) -> None:
    for dtype in DType:
        for layout in Layout:
            problem = edge_problem(shape, dtype, layout)
            if applies(name, problem, H200):
                expected = KERNELS[name].expected(problem, H200)
                assert len({name_of(cut) for cut in expected}) == len(expected), problem.key
                assert len(expected) == 1 or min(expected.values(), default=1) > 0


def test_a_name_holds_no_fitted_time() -> None:
    tile = nhwc.HALF.tiles[0]
    assert name_of(tile) == name_of(replace(tile, latency_us=9.0)) != name_of(replace(tile, stages=9))


def test_promising_cuts_are_timed_and_the_regret_of_the_rule_is_told(tmp_path: Path, capsys: Any) -> None:
    first, *others = names_of()
    favourite = others[4]
    troubles = {others[0]: NotSupported("no"), others[1]: 0.5}
    timer = Timer(favourite, troubles)
    (found,) = measure.measure(timer, [PROBLEM], [NAME], 12, math.inf)
    assert [row.cut for row in found] == [first, *others[2:11]]
    assert "no" in (said := capsys.readouterr().err)
    assert "errs by 0.5" in said
    rows.write(found, H200, tmp_path / "cuts.parquet")
    again, device = rows.read([tmp_path / "cuts.parquet"])
    assert (again, device) == (found, H200)
    (part,) = regret.timed(again, device)
    assert part.regret(device) == pytest.approx(found[0].time_ms / 1e-4)
    assert main(["--report", str(tmp_path / "cuts.parquet")]) == 0
    assert f"| {NAME} float16 nhwc | 1 | {found[0].time_ms / 1e-4:.3f}" in capsys.readouterr().out


def test_nothing_is_begun_after_the_time(tmp_path: Path) -> None:
    assert list(measure.measure(Timer(), [PROBLEM], [NAME], 12, 0.0)) == []
    assert main(["--report", str(tmp_path / "nothing.parquet")]) == 2


def made_by(menu: nhwc.Menu, problems: list[ConvProblem], monkeypatch: pytest.MonkeyPatch) -> Iterator[rows.Row]:
    """Times of all cuts as another menu would have them."""
    with monkeypatch.context() as patch:
        patch.setattr(nhwc, "MENUS", menus_of(menu))
        for problem in problems:
            for cut, us in KERNELS[NAME].expected(problem, H200).items():
                yield rows.Row(problem, NAME, name_of(cut), us / 1e3)


def menus_of(menu: nhwc.Menu) -> dict[str, dict[DType, nhwc.Menu]]:
    return {"nvidia-h200": {DType.FLOAT16: menu}}


def test_the_constants_of_a_rule_are_found_whole_numbers_among_them_and_shared_ones_once() -> None:
    problem = edge_problem("groups_48", DType.FLOAT16, Layout.NHWC)
    assert applies("grouped", problem, H200)
    part = regret.Timed("grouped", problem, np.arange(5), np.arange(1.0, 6.0))
    assert refit.holders(grouped_menu, part, H200) == ["COSTS"]
    numbers = refit.numbers_of(grouped_menu.COSTS)
    assert len(numbers) == 6 * len(fields(grouped_menu.Costs)), "float16 and bfloat16 share theirs"
    changed = refit.with_numbers(grouped_menu.COSTS, iter([number + 1 for number in numbers]))["nvidia-h200"]
    assert changed[DType.FLOAT16] is changed[DType.BFLOAT16]
    for layout in Layout:
        before, after = grouped_menu.H200[DType.FLOAT16][layout], changed[DType.FLOAT16][layout]
        assert after.block == before.block + 1


def test_a_refit_finds_what_times_were_made_by(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = tuple(
        replace(tile, latency_us=tile.latency_us * (3.0 if place % 2 else 0.5)) if place < 6 else tile
        for place, tile in enumerate(nhwc.HALF.tiles[:8])
    )
    monkeypatch.setattr(nhwc, "MENUS", menus_of(replace(nhwc.HALF, tiles=nhwc.HALF.tiles[:8])))
    truth = replace(nhwc.HALF, tiles=tiles, wave_us=4.0)
    layers = [
        f"{size}-{batch}-{taps}-{k}-64" for size in (7, 28) for batch in (1, 8) for taps in (1, 3) for k in (64, 256)
    ]
    problems = [ConvProblem.parse(layer, dtype="float16", layout="nhwc") for layer in layers]
    before = nhwc.MENUS
    parts = regret.timed(made_by(truth, problems, monkeypatch), H200)
    known, unseen = parts[::2], parts[1::2]
    assert refit.holders(nhwc, known[0], H200) == ["MENUS"]
    as_it_is = np.mean([part.regret(H200) for part in unseen])
    with refit.applied(nhwc, refit.refit(known, H200)):
        refitted = np.mean([part.regret(H200) for part in unseen])
    assert before is nhwc.MENUS
    assert refitted - 1 < (as_it_is - 1) / 4
