"""Which GPU ``cuda:N`` is: what the driver's library says, here a stand-in that g++ has built."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from conv_advisor.app.service.devices import KnownDevices
from conv_advisor.app.workers import visible
from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.records import Records
from conv_advisor.models.registry.on_disk import Registry

_DRIVER = r"""
#include <cstdio>
#include <cstdlib>
static const char* const gpus[] = {"NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA H200 MIG 1g.18gb"};
extern "C" {
int cuInit(unsigned) { return atoi(getenv("FAKE_FAILURE") ? getenv("FAKE_FAILURE") : "0"); }
int cuDeviceGetCount(int* count) { for (*count = 0; getenv("CUDA_VISIBLE_DEVICES")[*count]; ++*count); return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = getenv("CUDA_VISIBLE_DEVICES")[ordinal] - '0'; return 0; }
int cuDeviceGetName(char* name, int size, int device) { snprintf(name, size, "%s", gpus[device]); return 0; }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("g++") is None:
        pytest.skip("no g++ is installed")
    home = tmp_path_factory.mktemp("driver")
    (home / "driver.cpp").write_text(_DRIVER)
    built = home / "libcuda.so.1"
    subprocess.run(["/usr/bin/env", "g++", "-shared", "-fPIC", "-o", built, home / "driver.cpp"], check=True)
    return home


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    visible.visible_gpus.cache_clear()
    yield
    visible.visible_gpus.cache_clear()


def sees(library: Path, patch: pytest.MonkeyPatch, devices: str) -> None:
    """The stand-in has these of its three GPUs, in this order."""
    patch.setenv("LD_LIBRARY_PATH", str(library))
    patch.setenv("CUDA_VISIBLE_DEVICES", devices)


@pytest.mark.parametrize(
    ("devices", "names"),
    [("01", ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")), ("1", ("NVIDIA A100-SXM4-80GB",)), ("", ())],
)
def test_gpus_are_those_that_cuda_sees_in_its_order(
    library: Path, monkeypatch: pytest.MonkeyPatch, devices: str, names: tuple[str, ...]
) -> None:
    sees(library, monkeypatch, devices)
    assert visible.visible_gpus() == names


def test_cuda_n_follows_what_cuda_sees(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(library, monkeypatch, "10")
    known = KnownDevices(Registry(Path("nowhere")), Records())
    assert [known.id_of(name) for name in ("cuda", "cuda:1")] == ["nvidia-a100-sxm4-80gb", "nvidia-h200"]


def test_a_slice_is_not_the_gpu_that_it_is_of(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(library, monkeypatch, "2")
    with pytest.raises(UnknownDevice, match=r"NVIDIA H200 MIG 1g\.18gb"):
        KnownDevices(Registry(Path("nowhere")), Records()).id_of("cuda:0")


def test_a_driver_that_fails_has_no_gpus(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sees(library, monkeypatch, "0")
    monkeypatch.setenv("FAKE_FAILURE", "100")
    assert visible.visible_gpus() == ()
    visible.visible_gpus.cache_clear()
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.setattr(visible, "_TIMEOUT_S", 0.0)
    assert visible.visible_gpus() == ()
