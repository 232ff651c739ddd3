"""Every CUDA source compiles, with everything a launcher may define, for every architecture we name; no GPU needed."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cuda.core", reason="cuda-core compiles without a GPU", exc_type=ImportError)

from data.problem import ConvProblem, DType
from kernels.cuda.compile import (
    INSTANTIATIONS,
    STORAGES,
    compile_cubin,
    instantiations,
    load_module,
    read_source,
    shape_arguments,
)

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
MOST_SPILLED_BYTES = {"sm_80": 32, "sm_90": 0, "sm_100": 32}
"""The tiles are sized for Hopper; elsewhere a few spilled registers are borne."""
ELF = b"\x7fELF"


def kernels_of(name: str) -> list[str]:
    """The kernels a source defines."""
    return re.findall(r"__launch_bounds__\([^)]*\)\s*(\w+)\(", read_source(name))


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("name", INSTANTIATIONS)
def test_a_source_compiles_without_warnings_or_spills(name: str, storage: str, arch: str) -> None:
    """Every instantiation for Hopper, which the tiles are sized for; the smallest and largest elsewhere."""
    everything = instantiations(name, storage)
    step = 1 if arch == "sm_90" else max(1, len(everything) - 1)
    for defines in everything[::step]:
        cubin, log = compile_cubin(name, storage, defines, arch)
        assert cubin.startswith(ELF)
        assert "warning" not in log
        assert all(kernel.encode() in cubin for kernel in kernels_of(name))
        spilled = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
        assert len(spilled) == len(kernels_of(name))
        assert max(spilled) <= MOST_SPILLED_BYTES[arch]


def test_no_source_asks_for_fast_math() -> None:
    assert not [
        name for name in INSTANTIATIONS if "fast_math" in read_source(name) or "__fdividef" in read_source(name)
    ]


def test_an_unlisted_instantiation_is_refused() -> None:
    with pytest.raises(ValueError, match="FILTERS"):
        load_module("direct", DType.FLOAT32, FILTERS=3)


def test_the_shape_is_in_the_order_of_the_kernels_parameters() -> None:
    declared = re.search(r"#define SHAPE\s+(.*?)\n\n", read_source("direct"), re.DOTALL)
    assert declared is not None
    names = [name.lower() for name in re.findall(r"int (\w+)", declared.group(1))]
    problem = ConvProblem(
        *(3, 8, 17, 19, 12, 5, 3, 2, 1, 4, 6, 1, 2),
        groups=2,
    )
    assert [int(argument) for argument in shape_arguments(problem)] == [getattr(problem, name) for name in names]
    assert int(shape_arguments(problem, images=2)[0]) == 2
