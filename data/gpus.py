"""What NVIDIA publishes about its GPUs, and the names that people use for them.

Peaks are dense and accumulate in float32, as convolutions do: GeForce's tensor cores then reach half their peak.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import DType

_FILE: Final = Path(__file__).with_suffix(".csv")
_VENDOR: Final = re.compile(r"(nvidia|geforce|tesla|quadro)+")
_AMPERE: Final = 8.0
"""The capability from which tensor cores multiply bfloat16, and the system takes 1 KiB of each block's memory."""


@dataclass(frozen=True)
class Gpu:
    """One GPU, as its maker describes it.

    Parameters
    ----------
    name : str
        The name that the driver gives.
    short : tuple of str
        Names that people use, the usual one first; an ambiguous name means the GPU that has it here.
    capability : str
    processors, boost_mhz : int
    bandwidth_gb_s : float
        Bandwidth of its memory, in 10^9 bytes a second.
    memory_gb, l2_mb, shared_kb : float
        Memory, L2 cache (0: not published), and shared memory of one multiprocessor.
    fp32_tflops, tf32_tflops, fp16_tflops : float
        Without tensor cores; with them in tf32 (0: it has none for tf32); with them in float16.
    source : str
        The documents with these figures.
    """

    name: str
    short: tuple[str, ...]
    capability: str
    processors: int
    boost_mhz: int
    bandwidth_gb_s: float
    memory_gb: float
    l2_mb: float
    shared_kb: float
    fp32_tflops: float
    tf32_tflops: float
    fp16_tflops: float
    source: str

    @cached_property
    def id(self) -> str:
        """The id of its device."""
        return slug(self.name)

    @property
    def listed(self) -> str:
        """Its name in lists."""
        return self.short[0] if self.short else self.id

    @cached_property
    def device(self) -> Device:
        """The fingerprint of a GPU that nobody has opened: what rules and plans read, without versions."""
        return Device(
            id=self.id,
            name=self.name,
            kind="cuda",
            capability=self.capability,
            processors=self.processors,
            memory_bytes=round(self.memory_gb * 2**30),
            l2_bytes=round(self.l2_mb * 2**20),
            shared_memory_per_block_bytes=round(self.shared_kb - self._is_ampere_or_later) * 2**10,
            max_clock_mhz=self.boost_mhz,
        )

    def tflops(self, dtype: DType) -> float:
        """The peak in a precision, of plain arithmetic where no tensor core multiplies it."""
        if dtype is DType.TF32:
            return self.tf32_tflops or self.fp32_tflops
        if dtype is DType.FLOAT16 or (dtype is DType.BFLOAT16 and self._is_ampere_or_later):
            return self.fp16_tflops
        return self.fp32_tflops

    @property
    def _is_ampere_or_later(self) -> bool:
        return float(self.capability) >= _AMPERE


def slug(name: str) -> str:
    """The id of a device from its name: ``NVIDIA H200`` becomes ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


@cache
def gpus() -> dict[str, Gpu]:
    """Every GPU whose published facts are known, by id."""
    with _FILE.open(newline="", encoding="utf-8") as file:
        all_gpus = [_gpu(row) for row in csv.DictReader(file)]
    return {gpu.id: gpu for gpu in all_gpus}


def device_id_of(name: str, known: Collection[str]) -> str:
    """The id of a device by any of its names: capitals, separators and the maker's name do not matter.

    Parameters
    ----------
    name : str
        Such as ``A100``, ``rtx 4090``, ``NVIDIA H100 80GB HBM3`` or an id.
    known : collection of str
        The ids of devices that were measured or have a tree; they take precedence.

    Raises
    ------
    UnknownDevice
    """
    if name in known:
        return name
    key = _key(name)
    device_id = {_key(known_id): known_id for known_id in known}.get(key) or _ids_by_key().get(key)
    if device_id is None:
        raise UnknownDevice(name, listed(known))
    return device_id


def named(name: str, known: Mapping[str, Device]) -> Device:
    """The known device of a name, by the ids of all of them.

    Raises
    ------
    UnknownDevice
        None of the known devices has this name, though another GPU may have it.
    """
    try:
        return known[device_id_of(name, known.keys())]
    except (UnknownDevice, KeyError):
        raise UnknownDevice(name, sorted(known)) from None


def listed(known: Collection[str]) -> list[str]:
    """The names that may be asked for: known devices, then the GPUs with published figures."""
    return [*sorted(known), *(gpu.listed for gpu_id, gpu in gpus().items() if gpu_id not in known)]


@cache
def _ids_by_key() -> dict[str, str]:
    return {_key(name): gpu.id for gpu in gpus().values() for name in (gpu.name, *gpu.short)}


def _key(name: str) -> str:
    """The part that two spellings of one name have in common."""
    squeezed = re.sub(r"[^a-z0-9]+", "", name.lower())
    return _VENDOR.sub("", squeezed, count=1) if _VENDOR.match(squeezed) else squeezed


def _gpu(row: dict[str, str]) -> Gpu:
    numbers = {
        name: float(row[name] or 0)
        for name in ("bandwidth_gb_s", "memory_gb", "l2_mb", "shared_kb", "fp32_tflops", "tf32_tflops", "fp16_tflops")
    }
    return Gpu(
        name=row["name"],
        short=tuple(row["short"].split(";")) if row["short"] else (),
        capability=row["capability"],
        processors=int(row["processors"]),
        boost_mhz=int(row["boost_mhz"]),
        source=row["source"],
        **numbers,
    )
