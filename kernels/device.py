"""The fingerprint of the local CPU and of CUDA devices."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from pathlib import Path
from typing import Any

from conv_advisor.data.gpus import slug
from conv_advisor.data.measurement import Device
from conv_advisor.kernels.cpu.threads import available_cores


def package_versions(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed."""
    versions = {}
    for name in names:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def cpu_device() -> Device:
    """The local CPU; its id is ``cpu`` whatever its model."""
    return Device(
        id="cpu",
        name=_cpu_name(),
        kind="cpu",
        processors=available_cores(),
        memory_bytes=_physical_memory_bytes(),
        versions={"python": platform.python_version()} | package_versions("numpy", "scipy", "numba"),
    )


def cuda_device(properties: dict[str, Any], driver: str, max_clock_mhz: int, versions: dict[str, str]) -> Device:
    """A CUDA device from ``cudaGetDeviceProperties``.

    Parameters
    ----------
    properties : dict
        As ``cupy.cuda.runtime.getDeviceProperties`` gives it.
    driver : str
    max_clock_mhz : int
    versions : dict
        Versions of libraries that only a process with CUDA can query: cuDNN, the CUDA runtime.
    """
    name = properties["name"].decode()
    return Device(
        id=slug(name),
        name=name,
        kind="cuda",
        capability=f"{properties['major']}.{properties['minor']}",
        processors=properties["multiProcessorCount"],
        memory_bytes=properties["totalGlobalMem"],
        l2_bytes=properties["l2CacheSize"],
        shared_memory_per_block_bytes=properties["sharedMemPerBlockOptin"],
        max_clock_mhz=max_clock_mhz,
        versions={"driver": driver} | versions | package_versions("nvidia-cudnn-frontend"),
    )


def _cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.processor() or platform.machine()


def _physical_memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0
