"""The measurements that ship with the project, brought into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from conv_advisor.data.store import Store

TIMINGS: Final = Path(__file__).parent.parent / "data" / "timings"


def import_shipped(store: Store, folder: Path = TIMINGS, *, device_id: str | None = None) -> int:
    """Import every shipped file that this store has not seen; the number of rows added.

    Parameters
    ----------
    store : Store
    folder : Path
        Holds ``<device>/*.parquet``; files whose name ends in ``picks.parquet`` hold picks, the others measurements.
    device_id : str, optional
        Only the files of this device.

    Raises
    ------
    StoreError
    """
    paths = sorted(folder.glob("*/*.parquet"))
    return sum(import_file(store, path) for path in paths if device_id in (None, path.parent.name))


def import_file(store: Store, path: Path) -> int:
    """Import one file of measurements or, if its name ends in ``picks.parquet``, of picks; the number of rows added.

    Raises
    ------
    StoreError
    """
    return store.import_picks(path) if path.name.endswith("picks.parquet") else store.import_parquet(path)


def export_files(store: Store, path: Path, *, device_id: str, run_id: str | None = None) -> dict[Path, int]:
    """Write a device's measurements to path and its picks beside them; the rows in each file.

    Raises
    ------
    StoreError
    """
    picks = path.with_name(f"{path.stem}-picks.parquet")
    return {
        path: store.export_parquet(path, device_id=device_id, run_id=run_id),
        picks: store.export_picks(picks, device_id=device_id, run_id=run_id),
    }
