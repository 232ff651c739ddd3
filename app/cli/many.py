"""Advice on many layers: a table, comma-separated values, or the JSON that ``POST /v1/advice`` answers."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from conv_advisor.app.advice.advise import advise_one, answered_by, best_beside
from conv_advisor.app.cli import say
from conv_advisor.app.cli.output import print_json, watched
from conv_advisor.app.cli.table import Mark, Marked, write, write_table
from conv_advisor.app.web import text
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import NoAdvice
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.advice.baselines import NAMES

if TYPE_CHECKING:
    from conv_advisor.app.advice.limits import Limits
    from conv_advisor.app.advice.local import Local
    from conv_advisor.data.problem import ConvProblem
    from conv_advisor.models.tree.loan import Loan

_COLUMNS: Final = (
    *("layer", "dtype", "layout", "device", "variant", "time_ms", "source", "workspace_bytes", "confidence"),
    *(f"{field}_{part}" for field in NAMES for part in ("ms", "source", "speedup")),
    *("epilogue_is_counted", "borrowed_from", "error"),
)


def show(local: Local, problems: Sequence[ConvProblem], limits: Limits, *, as_json: bool, as_csv: bool) -> None:
    """Advise on each layer; a layer without advice shows its reason instead, and the last line counts those.

    Raises
    ------
    NoAdvice
        Some layer has no advice; the others are shown all the same.
    UnknownDevice, ModelRejected, StoreError
    """
    results = [_advised(local, problem, limits) for problem in watched(problems, "layers")]
    if as_json:
        _print_json(local, results, limits)
    elif as_csv:
        _print_csv(problems, results, limits)
    else:
        _print_table(problems, results, local.advisor(limits.device_id).loan)
    n_without = sum(isinstance(result, NoAdvice) for result in results)
    if n_without:
        raise NoAdvice(f"{n_without} of {len(problems)} layers have no advice")


def _advised(local: Local, problem: ConvProblem, limits: Limits) -> Advice | NoAdvice:
    try:
        return advise_one(local, problem, limits)
    except NoAdvice as error:
        return error


def _print_json(local: Local, results: Sequence[Advice | NoAdvice], limits: Limits) -> None:
    from conv_advisor.app.wire.errors import problem_of

    entries = [
        {"error": problem_of(result)} if isinstance(result, NoAdvice) else msgspec.to_builtins(best_beside(result))
        for result in results
    ]
    answer = answered_by(local.advisor(limits.device_id))
    print_json(answer | {"advice": [{"index": index} | entry for index, entry in enumerate(entries)]})


def _print_csv(problems: Sequence[ConvProblem], results: Sequence[Advice | NoAdvice], limits: Limits) -> None:
    writer = csv.DictWriter(sys.stdout, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for problem, result in zip(problems, results, strict=True):
        row: dict[str, Any] = {"layer": problem.short, "dtype": problem.dtype, "layout": problem.layout}
        row["device"] = limits.device_id
        if isinstance(result, NoAdvice):
            row["error"] = result.summary
        else:
            best = result.best
            row |= {"variant": best.variant, "time_ms": best.time_ms, "source": best.source}
            row["epilogue_is_counted"] = not result.uncounted if result.asked.epilogue else ""
            row |= {"workspace_bytes": best.workspace_bytes, "confidence": result.trust.confidence}
            row["borrowed_from"] = result.trust.borrowed_from
            for field in NAMES:
                baseline = getattr(result.baselines, field)
                row[f"{field}_ms"] = baseline.time_ms
                row |= {f"{field}_{part}": getattr(baseline, part) for part in ("source", "speedup")}
        writer.writerow(row)


def _print_table(problems: Sequence[ConvProblem], results: Sequence[Advice | NoAdvice], loan: Loan | None) -> None:
    kinds = {(problem.dtype, problem.layout) for problem in problems}
    rows = [_row(problem, result, len(kinds) > 1) for problem, result in zip(problems, results, strict=True)]
    write_table(("layer", "variant", "time", "time is", "vs cuDNN", "vs PyTorch"), rows, right=(2, 4, 5))
    advised = [result for result in results if isinstance(result, Advice)]
    if advised:
        total_ms = sum(advice.best.time_ms for advice in advised)
        dtype, layout = next(iter(kinds))
        same = "" if len(kinds) > 1 else f", {dtype} {layout}"
        without = ", epilogues not counted" if any(advice.uncounted for advice in advised) else ""
        write(Marked(f"{counted(len(advised), 'layer')}{same}, {text.time(total_ms)} in all{without}.", Mark.FAINT))
    if loan and any(advice.trust.borrowed_from for advice in advised):
        write(Marked(f"{loan.reason}.", Mark.UNSURE))


def _row(problem: ConvProblem, result: Advice | NoAdvice, has_kind: bool) -> tuple[str, ...]:
    name = f"{problem.brief} {problem.dtype} {problem.layout}" if has_kind else problem.brief
    if isinstance(result, NoAdvice):
        return name, Marked(result.summary, Mark.BEHIND), "", "", "", ""
    beside, best = result.baselines, result.best
    speedups = (beside.cudnn_best.speedup, beside.pytorch_default.speedup)
    return name, best.variant, text.time(best.time_ms), say.source_of(best.source), *map(say.ratio, speedups)
