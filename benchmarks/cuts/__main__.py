"""How well our kernels choose their cut: tile, cluster, and how a problem is shared out among blocks.

    python -m benchmarks.cuts --problems FILE --kernels grouped --output cuts.parquet      # on a GPU
    python -m benchmarks.cuts --report cuts.parquet --refit                                # anywhere

Every cut that the kernel's model expects to be fast is timed on every problem. Printed is the regret of the model: the
time of the cut that it chooses over the least. --refit fits the model's constants to the times of one half of the
problems, prints the regret on the other half before and after, and the constants that fit all of them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from pprint import pprint
from zlib import crc32

from benchmarks.cuts import measure, regret, rows
from benchmarks.cuts.kernels import KERNELS
from benchmarks.cuts.refit import applied, refit
from benchmarks.cuts.regret import Timed
from benchmarks.options import interruptible, list_of, say
from conv_advisor.data.errors import ConvAdvisorError
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType, Layout
from conv_advisor.data.problem_file import read_problems
from conv_advisor.kernels.bench import open_runner

SAVE_S = 30.0
"""Seconds between two writes of what was timed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Time cuts, or print what was timed; the exit status."""
    chosen = _parser().parse_args(arguments)
    try:
        if chosen.report:
            _report(*rows.read(chosen.report), has_refit=chosen.refit)
        else:
            _measure(chosen)
    except (ConvAdvisorError, OSError) as error:
        say(str(error))
        return 2
    return 0


def _measure(chosen: argparse.Namespace) -> None:
    runner = open_runner(chosen.device)
    problems = read_problems(chosen.problems, chosen.dtypes, chosen.layouts)
    measure.precompile(chosen.kernels, sorted({problem.dtype for problem in problems}))
    say(f"compiled; {len(problems)} problems")
    ends_at_s, saved_at_s = time.monotonic() + chosen.time_limit, time.monotonic()
    cut_rows: list[rows.Row] = []
    try:
        with interruptible():
            for part in measure.measure(runner, problems, chosen.kernels, chosen.most, ends_at_s):
                cut_rows += part
                if time.monotonic() - saved_at_s >= SAVE_S:
                    rows.write(cut_rows, runner.device, chosen.output)
                    saved_at_s = time.monotonic()
                    say(f"{len({row.problem for row in cut_rows})} of {len(problems)} problems, {len(cut_rows)} cuts")
    finally:
        rows.write(cut_rows, runner.device, chosen.output)
    _report(cut_rows, runner.device, has_refit=False)


def _report(cut_rows: Sequence[rows.Row], device: Device, *, has_refit: bool) -> None:
    parts = regret.timed(cut_rows, device)
    now = {kind: [part.regret(device) for part in mine] for kind, mine in regret.by_kind(parts).items()}
    print(regret.report({"the rule": now}))
    if not has_refit:
        return
    for (name, dtypes), mine in _alike(parts).items():
        module = KERNELS[name].constants
        known, unseen = ([part for part in mine if _half(part) == half] for half in (0, 1))
        kinds = regret.by_kind(unseen)
        before = {kind: [part.regret(device) for part in of_kind] for kind, of_kind in kinds.items()}
        with applied(module, refit(known, device)):
            after = {kind: [part.regret(device) for part in of_kind] for kind, of_kind in kinds.items()}
        print(f"\n{name}, {dtypes}: problems that the constants were not fitted to\n")
        print(regret.report({"as it is": before, "refitted": after}))
        print("\nfitted to all:")
        pprint(refit(mine, device), width=120)


def _alike(parts: Sequence[Timed]) -> dict[tuple[str, str], list[Timed]]:
    """The parts by kernel, those whose dtypes share constants together."""
    by_kernel: dict[tuple[str, str], list[Timed]] = {}
    for part in parts:
        dtype = part.problem.dtype
        name = str(dtype) if dtype in (DType.FLOAT32, DType.TF32) else "float16 and bfloat16"
        by_kernel.setdefault((part.kernel, name), []).append(part)
    return by_kernel


def _half(part: Timed) -> int:
    return crc32(part.problem.short.encode()) % 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cuts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--problems", type=Path, metavar="FILE", help="lines of: layer [dtype [layout]]")
    what.add_argument("--report", nargs="+", type=Path, metavar="FILE", help="what runs wrote; needs no GPU")
    add("--refit", action="store_true", help="of a report: fit the constants of the models")
    add("--kernels", type=list_of(tuple(KERNELS)), default=list(KERNELS), help=f"of: {', '.join(KERNELS)}")
    add("--dtypes", type=list_of(tuple(DType), DType), default=list(DType), help="of lines that say none; default all")
    add("--layouts", type=list_of(tuple(Layout), Layout), default=list(Layout), help="the same; default both")
    add("--output", type=Path, default=Path("cuts.parquet"), help="write the times there (default cuts.parquet)")
    add("--device", default="cuda:0", help="cuda:0 (default), cuda:1 ...")
    add("--most", type=int, default=48, help="cuts of a kernel on one problem (default 48)")
    add("--time-limit", type=float, default=float("inf"), metavar="SECONDS", help="no problem is begun after it")
    return parser


if __name__ == "__main__":
    sys.exit(main())
