"""What `serve` says of the host's GPUs, told from a folder like the driver's own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from conv_advisor.app.workers import gpus


def driver_of(tmp_path: Path, *models: str) -> Path:
    for place, model in enumerate(models):
        information = tmp_path / "gpus" / f"0000:0{place}:00.0" / "information"
        information.parent.mkdir(parents=True)
        information.write_text(
            f"Model: \t\t {model}\nIRQ:   \t\t 5{place}\nGPU UUID: \t GPU-1\nVideo BIOS: \t 96.00:1\n"
        )
    return tmp_path


def test_gpus_are_named_as_their_driver_names_them(tmp_path: Path) -> None:
    assert gpus.gpu_names(tmp_path / "none") == ()
    assert gpus.gpu_names(driver_of(tmp_path, "NVIDIA H200", "NVIDIA H100 80GB HBM3")) == (
        "NVIDIA H200",
        "NVIDIA H100 80GB HBM3",
    )


@pytest.mark.parametrize(
    ("models", "device", "has_libraries", "said"),
    [
        ((), "auto", True, ""),
        ((), "cpu", False, ""),
        ((), "cuda:0", True, "No NVIDIA GPU is found"),
        (("NVIDIA H200",), "auto", False, "make serve GPU=1"),
        (("NVIDIA H200",), "auto", True, "1 NVIDIA GPU on this host (NVIDIA H200)."),
        (("NVIDIA H200", "NVIDIA H200"), "cpu", True, "2 NVIDIA GPUs on this host (NVIDIA H200): not used"),
    ],
)
def test_what_is_found_and_what_would_use_it_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    models: tuple[str, ...],
    device: str,
    has_libraries: bool,
    said: str,
) -> None:
    monkeypatch.setattr(gpus, "find_spec", lambda name: object() if has_libraries else None)
    found = gpus.what_is_found(device, driver_of(tmp_path, *models))
    assert found == said if said in ("", found) else said in found


def test_what_only_a_gpu_can_use_is_installed_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "visible_gpus", tuple)
    assert gpus.why_no_gpu(tmp_path / "none").startswith("No NVIDIA GPU is found on this host")
    assert gpus.why_no_gpu(driver_of(tmp_path, "NVIDIA H200")) == ""
    monkeypatch.setattr(gpus, "visible_gpus", lambda: ("NVIDIA H200",))
    assert gpus.why_no_gpu(tmp_path / "none") == ""
    assert gpus.what_is_found("cuda:0", tmp_path / "none").startswith("1 NVIDIA GPU on this host (NVIDIA H200)")


def test_make_looks_for_a_gpu_before_it_installs_what_one_needs() -> None:
    if shutil.which("make") is None:
        pytest.skip("no make is installed")
    command = ["/usr/bin/env", "make", "--dry-run", "--always-make", "serve", "GPU=1"]
    said = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    assert 0 < said.index("conv_advisor.app.workers.gpus") < said.index("constraints/cuda.txt")
