"""Rewrite the pages, or draw their figures, from measurements."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from conv_advisor.data.errors import NotEnoughData
from conv_advisor.data.records import Records
from conv_advisor.data.shipped import Shipped
from conv_advisor.models.costs import Costs, from_table
from conv_advisor.models.evaluation.evaluate import evaluate
from conv_advisor.models.evaluation.peers import PEERS, read_peers
from conv_advisor.models.tree.file import read

try:
    from benchmarks import cpu, plots, sureness
    from benchmarks.guidelines.findings import Book
    from benchmarks.measured import ALL_COLUMNS, Column, load
    from benchmarks.plots import advice, guidelines, kernels, tree
    from benchmarks.plots.figures import show
    from benchmarks.plots.pages import rewritten
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    sys.exit("benchmarks.plots: matplotlib is not installed; constraints/dev.txt has it: make .venv/.dev installs that")

ROOT: Final = Path(__file__).parent.parent.parent
DOCS: Final = ROOT / "docs"
RESULTS: Final = ROOT / "benchmarks" / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the pages or draw their figures, and say what was written; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=plots.__doc__)
    parser.add_argument("--device", default="nvidia-h200")
    parser.add_argument("--timings", type=Path, default=ROOT / "data" / "timings", help="holds <device>.safetensors")
    parser.add_argument("--trained", type=Path, default=ROOT / "models" / "trained", help="holds <device>/card.json")
    parser.add_argument("--docs", type=Path, default=DOCS, help="holds the pages")
    parser.add_argument("--figures", type=Path, help="a copy of the pages to draw into; nothing else is written")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md", help="has a part of docs/advice.md too")
    parser.add_argument(
        "--evaluation", type=Path, help="what `conv-advisor evaluate --json` printed; default in benchmarks/results"
    )
    parser.add_argument("--peers", type=Path, default=PEERS, help="holds <device>.parquet, of benchmarks.advice")
    parser.add_argument("--cpu", type=Path, help="what benchmarks.cpu wrote; default in benchmarks/results")
    chosen = parser.parse_args(arguments)
    folder = chosen.timings / chosen.device
    loaded = {column: _known(folder, chosen.device, column) for column in ALL_COLUMNS}
    known = {column: costs for column, costs in loaded.items() if costs is not None}
    if not known:
        return 1
    on_cpu = chosen.cpu or RESULTS / f"cpu-{chosen.device}.json"
    book = Book(
        known,
        _known(folder, chosen.device, guidelines.FULL, "fourth-seed"),
        cpu.read(on_cpu) if on_cpu.exists() else None,
    )
    if chosen.figures:
        files = show(chosen.figures / "kernels.md", kernels.groups(known), kernels.draw(known))
        files += show(chosen.figures / "guidelines.md", guidelines.GROUPS, guidelines.draw(book))
        print(f"{len(files)} figures in {chosen.figures}")
        return 0
    kernels.write(known, chosen.docs, chosen.device)
    guidelines.write(book, chosen.docs, chosen.device, chosen.trained / chosen.device / "card.json")
    report = chosen.evaluation or RESULTS / f"evaluation-{chosen.device}.json"
    if report.exists():
        _write_advice(report, chosen)
    else:
        print(f"no scores of advice: there is no {report}", file=sys.stderr)
    if (chosen.docs / tree.PAGE).exists():
        _write_tree(chosen)
    print(f"the parts of the pages in {chosen.docs}, of {len(known)} dtypes and layouts")
    return 0


def _write_tree(chosen: argparse.Namespace) -> None:
    records = Records(shipped=Shipped(chosen.timings))
    costs = from_table(records.table(chosen.device), chosen.device)
    tree.write(read(chosen.trained / chosen.device), costs, chosen.docs)


def _write_advice(report: Path, chosen: argparse.Namespace) -> None:
    peers, model = chosen.peers / f"{chosen.device}.parquet", read(chosen.trained / chosen.device)
    records = Records(shipped=Shipped(chosen.timings))
    standing = evaluate(
        records.table(chosen.device),
        records.picks_table(chosen.device),
        device_id=chosen.device,
        peers=read_peers(peers),
        model=model,
    )
    advice.write(report, standing.to_dict(), peers, chosen.docs, chosen.readme)
    timings = chosen.timings / chosen.device
    sure = sureness.tables(sureness.answers(timings, model), sureness.attempt_ms(timings))
    page = chosen.docs / "advice.md"
    page.write_text(rewritten(page.read_text(encoding="utf-8"), sure), encoding="utf-8")


def _known(folder: Path, device_id: str, column: Column, group: str = "seeds") -> Costs | None:
    try:
        return load(folder, device_id, column, group)
    except NotEnoughData as error:
        print(f"nothing of {' '.join(column)}, {group}: {error}", file=sys.stderr)
        return None


if __name__ == "__main__":
    sys.exit(main())
