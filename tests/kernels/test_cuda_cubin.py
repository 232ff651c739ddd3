"""What was compiled for one exact architecture is kept for the next process, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings.nvrtc", reason="the compiler is not installed")

from conv_advisor.kernels.cuda import cubin

SOURCE = 'extern "C" __global__ void kernel(float* y) { y[0] = VALUE; }'
OPTIONS = ("-std=c++17", "-DVALUE=1.0f", "--gpu-architecture=sm_90a")


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "cupy"))
    return tmp_path / "cupy" / "conv-advisor"


def test_a_device_that_the_compiler_does_not_know_has_no_architecture() -> None:
    assert cubin._own_architecture(90) == "sm_90"
    assert cubin._own_architecture(999) is None


def test_what_was_compiled_is_not_compiled_again(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cubin.compiled(SOURCE, "kernel", OPTIONS)
    assert path.parent == cached
    assert path.read_bytes().startswith(b"\x7fELF")
    monkeypatch.setattr(cubin, "_compile", lambda *_: pytest.fail("it is there"))
    assert cubin.compiled(SOURCE, "kernel", OPTIONS) == path
    assert list(cached.iterdir()) == [path]


def test_another_source_or_option_or_compiler_is_another_file(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ("-std=c++17", "-DVALUE=2.0f", "--gpu-architecture=sm_90a")
    found = {cubin.compiled(SOURCE, "kernel", options).read_bytes() for options in (OPTIONS, other)}
    found.add(cubin.compiled(SOURCE.replace("y[0]", "y[1]"), "kernel", OPTIONS).read_bytes())
    assert len(found) == len(list(cached.iterdir())) == 3
    from cuda.bindings import nvrtc

    monkeypatch.setattr(nvrtc, "nvrtcVersion", lambda: (0, 99, 0))
    cubin.compiled(SOURCE, "kernel", OPTIONS)
    assert len(list(cached.iterdir())) == 4


def test_a_compilation_that_ends_midway_leaves_nothing(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(cubin, "_compile", stop)
    with pytest.raises(KeyboardInterrupt):
        cubin.compiled(SOURCE, "kernel", OPTIONS)
    assert list(cached.iterdir()) == []


def test_without_a_cache_it_is_compiled_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "file"))
    assert cubin.compiled(SOURCE, "kernel", OPTIONS).read_bytes().startswith(b"\x7fELF")
