"""What was compiled for one exact architecture is kept for the next process, and is what the tests check."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="the compiler is not installed")

from conv_advisor.data.errors import CompileFailed
from conv_advisor.kernels import builds
from conv_advisor.kernels.cuda import compile as compiling
from conv_advisor.kernels.cuda import cubin
from conv_advisor.kernels.cuda.sources import SOURCES

SOURCE = 'extern "C" __global__ void kernel(float* y) { y[0] = VALUE; }'
OPTIONS = ("-std=c++17", "-DVALUE=1.0f")
ARCH = "sm_90a"


@pytest.fixture(autouse=True)
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    toolkit = cubin._toolkit
    builds._home.cache_clear()
    yield tmp_path / "conv-advisor" / "nvrtc"
    builds._home.cache_clear()
    toolkit.cache_clear()


def test_a_device_that_the_compiler_does_not_know_has_no_architecture() -> None:
    assert cubin._own_architecture(90) == "sm_90"
    assert cubin._own_architecture(999) is None


def test_what_was_compiled_is_not_compiled_again(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = cubin.compiled(SOURCE, "kernel", OPTIONS, ARCH)
    assert (kept / "cubin").read_bytes().startswith(b"\x7fELF")
    assert "Used" in (kept / "log").read_text()
    monkeypatch.setattr(cubin, "_compile", lambda *_: pytest.fail("it is there"))
    assert cubin.compiled(SOURCE, "kernel", OPTIONS, ARCH) == kept
    assert list(cached.iterdir()) == [kept]


def test_another_source_or_option_or_architecture_or_compiler_is_another_build(
    cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cubin.compiled(SOURCE, "kernel", OPTIONS, ARCH)
    cubin.compiled(SOURCE.replace("y[0]", "y[1]"), "kernel", OPTIONS, ARCH)
    cubin.compiled(SOURCE, "kernel", ("-std=c++17", "-DVALUE=2.0f"), ARCH)
    cubin.compiled(SOURCE, "kernel", OPTIONS, "sm_80")
    assert len({(kept / "cubin").read_bytes() for kept in cached.iterdir()}) == 4
    monkeypatch.setattr(cubin, "_toolkit", lambda: ("nvrtc 99.0",))
    cubin.compiled(SOURCE, "kernel", OPTIONS, ARCH)
    assert len(list(cached.iterdir())) == 5


def test_an_empty_log_overwrites_no_bytes_that_python_shares() -> None:
    code, log = cubin._compile(SOURCE, "kernel", (*OPTIONS, f"--gpu-architecture={ARCH}"))
    assert (code[:4], log) == (b"\x7fELF", "")
    assert [byte for byte in range(256) if bytes([byte])[0] != byte] == []


def test_a_patch_release_is_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = cubin._toolkit()
    patched = SimpleNamespace(version="13.0.999")
    monkeypatch.setattr(cubin, "distributions", lambda name: [patched] if name == "nvidia-cuda-nvrtc" else [])
    cubin._toolkit.cache_clear()
    assert cubin._toolkit() == (installed[0], "nvidia-cuda-nvrtc 13.0.999")


def test_what_does_not_compile_says_why_and_leaves_nothing(cached: Path) -> None:
    with pytest.raises(CompileFailed, match=r'kernel\.cu.*\n.*identifier "VALUE" is undefined'):
        cubin.compiled(SOURCE, "kernel", (), ARCH)
    assert list(cached.iterdir()) == []


@pytest.mark.parametrize("name", ["direct", "winograd"])
def test_the_code_that_is_checked_is_the_code_that_runs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    cupy = ModuleType("cupy")
    device = SimpleNamespace(compute_capability="90")
    cupy.__dict__.update(cuda=SimpleNamespace(Device=lambda: device), RawModule=lambda path: Path(path).read_bytes())
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    defines = SOURCES[name].instantiations("FLOAT32")[0]
    runs = compiling._load_module.__wrapped__(SOURCES[name], "FLOAT32", tuple(defines.items()))
    assert runs == compiling.compile_cubin(SOURCES[name], "FLOAT32", defines, "sm_90")[0]
