"""The runner's own kernels compile without a GPU; that they are right is checked on one (test_cuda_runner_gpu.py)."""

from __future__ import annotations

import pytest

from conv_advisor.kernels.cuda.compile import _include_path
from conv_advisor.kernels.cuda.parts.source import FOLDER

ARCHS = ("sm_80", "sm_90", "sm_100")
TEMPLATES = ("fill", "reference_at", "gather", "count_not_finite")
STORAGES = ("float", "__half", "__nv_bfloat16")


@pytest.mark.parametrize("arch", ARCHS)
def test_the_checks_compile(arch: str) -> None:
    core = pytest.importorskip("cuda.core", reason="compiling without a GPU needs cuda-core")
    options = core.ProgramOptions(arch=arch, std="c++17", include_path=_include_path())
    names = tuple(f"{template}<{storage}>" for template in TEMPLATES for storage in STORAGES)
    program = core.Program((FOLDER / "verify.cu").read_text(), "c++", options)
    compiled = program.compile("cubin", name_expressions=(*names, "nothing"))
    assert len(compiled.code) > 1000
