"""Each kernel of a variant by itself: the papers' tables then and now, ablations of cuConv, the post's setting.

    python -m benchmarks.stages --output stages.json       # on a GPU, about a minute
    python -m benchmarks.stages --report stages.json       # anywhere: the tables in Markdown

A kernel's time is by how much a replayed graph is longer with it (`kernels/cuda/stages.py`), medians of
20 replays, warm L2. Every launch is checked against float64 first.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.options import say
from benchmarks.stages import tables
from benchmarks.stages.measure import timed
from conv_advisor.data.errors import ConvAdvisorError


def main(arguments: Sequence[str] | None = None) -> int:
    """Time stages, or print what was timed; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--output", type=Path, help="write what was timed to this JSON file")
    parser.add_argument("--report", type=Path, help="print the tables of this file; needs no GPU")
    chosen = parser.parse_args(arguments)
    try:
        document = json.loads(chosen.report.read_text()) if chosen.report else timed(chosen.device)
    except (ConvAdvisorError, OSError, ValueError) as error:
        say(str(error))
        return 2
    if chosen.output:
        chosen.output.write_text(json.dumps(document, indent=1) + "\n")
    print(tables.everything(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
