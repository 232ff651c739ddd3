"""The NVIDIA GPUs of this host, as its driver names them; needs none of CUDA's libraries."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from conv_advisor.app.workers.visible import visible_gpus

DRIVER: Final = Path("/proc/driver/nvidia")
"""Folder in which the Linux driver describes itself; containers with a GPU see it too."""


def gpu_names(driver: Path = DRIVER) -> tuple[str, ...]:
    """The model of each GPU, such as ``NVIDIA H200``; empty where there is none, or no driver."""
    names = []
    for path in sorted(driver.glob("gpus/*/information")):
        fields = dict(line.split(":", 1) for line in path.read_text(errors="replace").splitlines() if ":" in line)
        names.append(fields.get("Model", "GPU of unknown model").strip())
    return tuple(names)


def what_is_found(device: str, driver: Path = DRIVER) -> str:
    """A sentence on the host's GPUs and on what would use them; empty without a GPU where none is configured.

    Parameters
    ----------
    device : str
        As configured: auto, cpu, cuda:0 ...
    driver : Path
        Folder in which the driver describes itself.
    """
    names = gpu_names(driver)
    if not names and device.startswith("cuda"):
        names = visible_gpus()  # Windows' subsystem for Linux has no such folder
    has_libraries = find_spec("cupy") is not None
    if not names:
        return f"No NVIDIA GPU is found on this host, and the device is {device}." if device.startswith("cuda") else ""
    sentence = f"{len(names)} NVIDIA GPU{'s' * (len(names) > 1)} on this host ({', '.join(sorted(set(names)))})"
    if not has_libraries:
        return (
            f"{sentence}: not used, since the extra 'cuda' is not installed. `make serve GPU=1` installs it and serves "
            "the GPU; elsewhere, pip install 'conv-advisor[cuda]'."
        )
    return f"{sentence}: not used, since the device is cpu." if device == "cpu" else f"{sentence}."


def why_no_gpu(driver: Path = DRIVER) -> str:
    """Why packages that need a GPU should not be installed; empty where there is a GPU."""
    if gpu_names(driver) or visible_gpus():
        return ""
    return (
        "No NVIDIA GPU is found on this host, so GPU=1 would install what nothing here can use. `make serve` "
        "alone gives advice for GPUs, and runs convolutions on the CPU."
    )


if __name__ == "__main__":
    sys.exit(why_no_gpu() or None)
