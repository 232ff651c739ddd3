"""docs/compatibility.md: its versions, GPUs, limits and messages are those of the project."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from conv_advisor.app.plans.onnx_reader import MAX_NODES
from conv_advisor.app.plans.reading import MAX_MODEL_BYTES
from conv_advisor.app.settings import Settings
from conv_advisor.app.wire.schemas import MAX_LAYERS
from conv_advisor.data.errors import UnknownDevice
from conv_advisor.data.gpus import gpus
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem
from conv_advisor.kernels.catalog import VARIANTS
from conv_advisor.kernels.variant import why_not

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required(extra: str, package: str) -> str:
    """The version that an extra asks of a package, as far as the page says it."""
    (found,) = (each for each in PROJECT["optional-dependencies"][extra] if re.match(rf"{package}[=><]", each))
    return re.sub(r"^[^=><]*[=><]+|\.\*$", "", found)


def test_the_versions_are_those_that_are_installed() -> None:
    minors = sorted(int(each.rsplit(".", 1)[1]) for each in PROJECT["classifiers"] if ":: Python :: 3." in each)
    assert f"| Python | 3.{minors[0]} to 3.{minors[-1]} |" in PAGE
    assert f">=3.{minors[0]}" == PROJECT["requires-python"]
    cuda = {
        name: required("cuda", package)
        for name, package in (
            ("nvrtc", "nvidia-cuda-nvrtc"),
            ("cublas", "nvidia-cublas"),
            ("cufft", "nvidia-cufft"),
            ("cudnn", "nvidia-cudnn-cu13"),
            ("frontend", "nvidia-cudnn-frontend"),
            ("cupy", "cupy-cuda13x"),
        )
    }
    assert f"CUDA {cuda['nvrtc']}, cuBLAS {cuda['cublas']}, cuFFT {cuda['cufft']}" in PAGE
    assert f"| {cuda['cudnn']}, frontend {cuda['frontend'].removesuffix('.0')} |" in PAGE
    assert f"| CuPy (the extra `cuda` brings it) | {cuda['cupy'].removesuffix('.0')} |" in PAGE
    assert f"| {required('torch', 'torch')} or newer, built for CUDA 13 |" in PAGE


@pytest.mark.parametrize(
    ("capability", "runs"), [("9.0", (True, True)), ("8.0", (True, False)), ("7.5", (False, False))]
)
def test_the_gpus_run_what_the_page_says(capability: str, runs: tuple[bool, bool]) -> None:
    device = next(each.device for each in gpus().values() if each.capability == capability)
    anywhere, with_wgmma = (
        why_not(VARIANTS[variant], ConvProblem.parse("14-1-3-256-128", dtype="float16", layout=layout), device) is None
        for variant, layout in (("cuda.implicit_gemm", "nchw"), ("cuda.implicit_gemm_tma", "nhwc"))
    )
    assert (anywhere, with_wgmma) == runs


def test_the_limits_are_those_that_hold() -> None:
    assert f"at most {MAX_LAYERS:,} layers" in PAGE
    assert MAX_ELEMENTS == 2**31 - 1
    assert f"({Settings().max_body_bytes // 2**20} MiB by default)" in PAGE
    assert f"may have {MAX_MODEL_BYTES // 2**30} GiB and {MAX_NODES:,} nodes" in PAGE


def test_the_messages_are_those_that_are_said() -> None:
    files = (path for room in ("app", "src") for path in (ROOT / room).rglob("*.py"))
    sources = " ".join(path.read_text(encoding="utf-8") for path in files)
    assert str(UnknownDevice("gtx1080", ["a100"])).startswith("unknown device")
    for message in ("No NVIDIA GPU is found on this host", "a loopback address, or tokens", "stay PyTorch's own"):
        assert message in PAGE
        assert message in sources, message
