"""Measurements and picks on their way between a store and Parquet files."""

from __future__ import annotations

from pathlib import Path

from conv_advisor.data.store import Store


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
