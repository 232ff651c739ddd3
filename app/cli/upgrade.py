"""The command that compares two data sets: before and after an upgrade, or two devices."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.output import AsJson, patient_bar, print_json, print_table
from conv_advisor.app.service.known import records_of
from conv_advisor.app.web import text
from conv_advisor.data.counting import counted
from conv_advisor.data.errors import InvalidInput, NotEnoughData, UnknownDevice
from conv_advisor.data.extras import require
from conv_advisor.data.measurement import Device

if TYPE_CHECKING:
    import pyarrow as pa

    from conv_advisor.data.records import Records
    from conv_advisor.models.upgrades.compare import Line

_FINGERPRINT = re.compile(r"[0-9a-f]{16}")
_STEPS: Final = 5
"""Reading and sorting each data set, and comparing them."""

DataSet = Annotated[str, typer.Argument(help="Parquet file, folder of them, id of a device, or its fingerprint.")]


def compare(
    before: DataSet,
    after: DataSet,
    most: Annotated[int, typer.Option(min=1, help="Number of layers of each kind to show.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Show what became slower or faster between two data sets.

    It lists layers and variants whose times differ beyond noise, for example after an upgrade of driver or cuDNN.
    """
    from conv_advisor.models.upgrades.compare import compare as compare_costs

    if before == after:
        raise InvalidInput("AFTER", after, "another data set than BEFORE")
    with patient_bar() as show:
        costs_before, facts_before = _costs(before, "BEFORE", lambda step, doing: show(step, _STEPS, doing))
        costs_after, facts_after = _costs(after, "AFTER", lambda step, doing: show(2 + step, _STEPS, doing))
        show(4, _STEPS, "comparing them")
        comparison = compare_costs(costs_before, costs_after, most=most)
        show(_STEPS, _STEPS, "")
    if not comparison.n_problems:
        raise NotEnoughData(f"{before} and {after} have no problem in common")
    if as_json:
        print_json({"before": facts_before, "after": facts_after, **comparison.to_dict()})
        return
    versions = sorted({*facts_before["versions"], *facts_after["versions"]})
    rows = [(name, facts_before[name], facts_after[name]) for name in ("id", "name")]
    rows += [(name, facts_before["versions"].get(name, ""), facts_after["versions"].get(name, "")) for name in versions]
    print_table(("", "before", "after"), rows, title=f"{counted(comparison.n_problems, 'problem')} in both")
    _show_lines([comparison.best, *comparison.variants])
    for title, shifts in (("slower", comparison.best.regressed), ("faster", comparison.best.improved)):
        cells = [
            (
                shift.problem,
                text.time(shift.before_ms),
                shift.before,
                text.time(shift.after_ms),
                shift.after,
                shift.ratio,
            )
            for shift in shifts
        ]
        columns = ("problem", "before", "by", "after", "by", "after / before")
        print_table(columns, cells, title=f"Best of all: {title}, those that changed most")


def _show_lines(lines: Iterable[Line]) -> None:
    names = ("name", "n_problems", "geometric_mean", "n_regressed", "n_improved", "n_lost", "n_gained")
    columns = ("variant", "problems", "after / before", "slower", "faster", "lost", "gained")
    print_table(columns, [[getattr(line, name) for name in names] for line in lines], title="By variant")


def _costs(name: str, option: str, on_step: Callable[[int, str], None]) -> tuple[Any, dict[str, Any]]:
    """The costs of a data set, and facts of its device; reports its two steps, reading and sorting."""
    from conv_advisor.models.costs import device_of, from_table

    on_step(0, f"reading {name}")
    table = _table(name, option)
    on_step(1, f"sorting {name}")
    ids = {Device.from_json(text).id for text in table["device"].unique().to_pylist()}
    if len(ids) != 1:
        raise InvalidInput(option, name, f"measurements of one device, not of {', '.join(sorted(ids)) or 'none'}")
    device = device_of(table, ids.pop())
    facts = {"id": device.id, "name": device.name, "fingerprint": device.fingerprint, "versions": device.versions}
    return from_table(table, device.id), facts


def _table(name: str, option: str) -> pa.Table:
    require("pyarrow")
    import pyarrow as pa

    from conv_advisor.data import parquet

    path = Path(name)
    if path.is_dir():
        files = sorted(file for file in path.glob("*.parquet") if not file.name.endswith("picks.parquet"))
        if not files:
            raise InvalidInput(option, name, "a folder with Parquet files of measurements")
        return pa.concat_tables([parquet.read(file, parquet.SCHEMA) for file in files])
    if path.is_file():
        return parquet.read(path, parquet.SCHEMA)
    if path.suffix or len(path.parts) > 1:  # no id of a device has either
        allowed = "a Parquet file or a folder of them that exists, the id of a device, or its fingerprint"
        raise InvalidInput(option, name, allowed)
    return _known(name)


def _known(name: str) -> pa.Table:
    """The measurements of a device; for a fingerprint, only those taken under it."""
    records = records_of(load_settings())
    known = records.devices()
    if not _FINGERPRINT.fullmatch(name):
        return records.table(records.device(name).id)
    for device_id in known:
        table = _under(records, device_id, name)
        if table is not None:
            return table
    raise UnknownDevice(name, list(known))


def _under(records: Records, device_id: str, fingerprint: str) -> pa.Table | None:
    import pyarrow as pa
    import pyarrow.compute as pc

    table = records.table(device_id)
    texts = pc.cast(table["device"], pa.string())
    mine = [text for text in texts.unique().to_pylist() if Device(**json.loads(text)).fingerprint == fingerprint]
    return table.filter(pc.is_in(texts, value_set=pa.array(mine, pa.string()))) if mine else None
