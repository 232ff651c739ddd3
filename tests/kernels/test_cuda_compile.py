"""Every CUDA source compiles, with much of what a launcher may define, for every architecture it is for; no GPU."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("cuda.core", reason="cuda-core compiles without a GPU", exc_type=ImportError)

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.catalog import FAMILIES, VARIANTS
from conv_advisor.kernels.cuda.compile import load_module, shape_arguments
from conv_advisor.kernels.cuda.direct.plan import SOURCE as DIRECT
from conv_advisor.kernels.cuda.parts.source import ARCHITECTURES, FOLDER, PARTS, STORAGES
from conv_advisor.kernels.cuda.resources import (
    MOST_CUTS,
    TUNED,
    compilations,
    compile_one,
    describe,
    new_pool,
    start,
    unlisted_spills,
    with_lost_copies,
)
from conv_advisor.kernels.cuda.sources import SOURCES

CASES = [
    (source, arch, storage) for source in SOURCES for arch in SOURCES[source].architectures for storage in STORAGES
]
ELF = b"\x7fELF"


def kernels_of(source: str) -> list[str]:
    """The kernels a source defines."""
    return re.findall(r"__launch_bounds__\([^)]*\)\s*(\w+)\(", SOURCES[source].text())


@pytest.mark.slow
@pytest.mark.parametrize(("source", "arch", "storage"), CASES)
def test_a_source_compiles_without_warnings_unlisted_spills_or_lost_copies(source, arch, storage, compiled) -> None:
    mine = {
        compilation: future
        for compilation, future in compiled.items()
        if (compilation.source, compilation.arch, compilation.storage) == (source, arch, storage)
    }
    assert mine or not SOURCES[source].instantiations(storage)
    for future in mine.values():
        cubin, log, found = future.result()
        assert cubin.startswith(ELF)
        assert "warning" not in log
        assert sorted(each.kernel for each in found) == sorted(kernels_of(source))
        assert all(each.kernel.encode() in cubin for each in found)
        assert [describe(each) for each in unlisted_spills(found)] == []
        assert with_lost_copies(found) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if source.takes_epilogue])
def test_a_source_compiles_with_what_follows_a_convolution(name: str) -> None:
    everything = compilations([name], [TUNED], epilogue=Epilogue(bias=True, residual=True, activation=Activation.GELU))
    for storage in STORAGES:
        middle = [each for each in everything if each.storage == storage]
        for compilation in middle[len(middle) // 2 :][:1]:
            _, log, found = compile_one(compilation)
            assert "warning" not in log
            assert "are serialized" not in log  # as ptxas says of wgmma whose sums others write in between
            assert sorted(each.kernel for each in found) == sorted(kernels_of(name))
            assert [describe(each) for each in unlisted_spills(found)] == []
            assert with_lost_copies(found) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "epilogue",
    [Epilogue(True, True, Activation.RELU), Epilogue(activation=Activation.GELU), Epilogue(activation=Activation.SILU)],
    ids=str,
)
def test_the_builds_that_are_shortest_of_registers_compile_with_the_epilogues_that_need_most(
    epilogue: Epilogue,
) -> None:
    """Half of a thread's registers are sums: whether it spills depends on what follows, which is not compiled above.

    Tiles of two images, of which there may be four, are left out.
    """
    tight = [
        build
        for build in compilations(["pointwise"], [TUNED], is_everything=True, epilogue=epilogue)
        if build.storage == "FLOAT16"
        if {("BN", 128), ("BN", 256)} & {*build.defines} and ("SEGMENTS", 2) not in build.defines
    ]
    assert len(tight) == 12
    with new_pool() as pool:
        done = [future.result() for future in start(tight, pool).values()]
    assert [log for _, log, _ in done if "warning" in log or "are serialized" in log] == []
    kernels = [kernel for _, _, kernels in done for kernel in kernels]
    assert [describe(kernel) for kernel in unlisted_spills(kernels)] == []
    assert with_lost_copies(kernels) == []


def test_many_cuts_are_compiled_for_hopper_and_the_first_and_last_elsewhere() -> None:
    chosen = compilations()
    assert len(set(chosen)) == len(chosen)
    for source, arch, storage in CASES:
        everything = SOURCES[source].instantiations(storage)
        mine = [dict(c.defines) for c in chosen if (c.source, c.storage, c.arch) == (source, storage, arch)]
        assert len(mine) == min(len(everything), MOST_CUTS if arch.startswith(TUNED) else 2)
        assert all(end in mine for end in (*everything[:1], *everything[-1:]))
        whole = [dict(c.defines) for c in compilations([source], is_everything=True) if c.storage == storage]
        assert whole == list(everything) * len(SOURCES[source].architectures)


def test_a_source_is_for_every_architecture_or_for_one_of_a_family_that_we_name() -> None:
    assert {arch.removesuffix("a") for source in SOURCES.values() for arch in source.architectures} <= set(
        ARCHITECTURES
    )


def test_no_source_asks_for_fast_math_but_where_its_error_is_tested() -> None:
    """Activations do (`test_cuda_activations_gpu`)."""
    activations = (PARTS / "epilogue.cuh").read_text()
    texts = {name: source.text().replace(activations, "") for name, source in SOURCES.items()}
    fast = re.compile(r"fast_math|__fdividef|__(?:exp|log|sin|cos|tan|pow)f\b")
    assert not [name for name, text in texts.items() if fast.search(text)]
    assert len(fast.findall(activations)) == 2


def test_no_source_copies_to_shared_memory_with_a_cache_hint() -> None:
    """ptxas assembles some of them wrongly (`sass.lost_copies`), and not every cut is compiled here."""
    hinted = re.compile(r"cp\.async\.c[ag]\.[\w:.]*L2::cache_hint")
    assert hinted.search("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;")
    assert [name for name, source in SOURCES.items() if hinted.search(source.text())] == []


def test_every_source_in_the_folders_of_families_is_listed_once() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*/*.cu")) == sorted(SOURCES)


def test_every_folder_with_a_launcher_is_a_family_of_its_name() -> None:
    assert sorted(path.parent.name for path in FOLDER.glob("*/launch.py")) == sorted(family.name for family in FAMILIES)
    ids = [variant.id for variant in VARIANTS]
    assert len(set(ids)) == len(ids)
    tunings = [tuning for family in FAMILIES if (tuning := family.kernel().tuning)]
    assert {id_ for tuning in tunings for id_ in tuning.serves} <= set(ids)


def test_every_family_prepares_its_variants_and_no_others() -> None:
    for family in FAMILIES:
        assert set(family.kernel().prepare) == {variant.id for variant in family.variants}
        assert all(variant.kernel is family.kernel for variant in family.variants)


def test_an_unlisted_instantiation_is_refused() -> None:
    with pytest.raises(ValueError, match="FILTERS"):
        load_module(DIRECT, DType.FLOAT32, FILTERS=3)


def test_the_shape_is_in_the_order_of_the_kernels_parameters() -> None:
    declared = re.search(r"#define SHAPE\s+(.*?)\n\n", DIRECT.text(), re.DOTALL)
    assert declared is not None
    names = [name.lower() for name in re.findall(r"int (\w+)", declared.group(1))]
    problem = ConvProblem(
        *(3, 8, 17, 19, 12, 5, 3, 2, 1, 4, 6, 1, 2),
        groups=2,
    )
    assert [int(argument) for argument in shape_arguments(problem)] == [getattr(problem, name) for name in names]
    assert int(shape_arguments(problem, images=2)[0]) == 2
