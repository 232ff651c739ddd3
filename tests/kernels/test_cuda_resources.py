"""What ptxas says of kernels is read right, and a spill fails unless it is listed with its reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conv_advisor.kernels.cuda import resources
from conv_advisor.kernels.cuda.parts.epilogue import MACROS
from conv_advisor.kernels.cuda.parts.source import STORAGES, BorneSpill, Source
from conv_advisor.kernels.cuda.resources import (
    Compilation,
    Resources,
    compilations,
    parse,
    unlisted_spills,
)
from conv_advisor.kernels.cuda.sources import SOURCES

AT = Compilation("winograd", "FLOAT32", "sm_80", (("TILE", 4),))
LOG = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'winograd_transform_y' for 'sm_80'
ptxas info    : Function properties for winograd_transform_y
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 432 bytes cmem[0]
ptxas info    : Compile time = 10.211 ms
ptxas info    : Compiling entry function 'winograd_fused' for 'sm_80'
ptxas info    : Function properties for winograd_fused
ptxas         .     24 bytes stack frame, 16 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 16 bytes cumulative stack size, 32768 bytes smem, 440 bytes cmem[0]
ptxas info    : Compile time = 44.183 ms
"""
PLAIN = Resources(AT, "winograd_transform_y", 32, 0, 0, 0, 0)
SPILLING = Resources(AT, "winograd_fused", 128, 32768, 24, 16, 40)
BORNE = BorneSpill("winograd_fused", "sm_80", 40, "known")


def test_the_log_of_ptxas_is_read() -> None:
    assert list(parse(AT, LOG)) == [PLAIN, SPILLING]
    assert SPILLING.spilled_bytes == 40


def test_a_log_that_says_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not understood"):
        list(parse(AT, LOG.replace("spill stores", "spilt stores")))


@pytest.mark.parametrize(
    ("borne", "is_listed"),
    [
        (BORNE, True),
        (replace(BORNE, storage="FLOAT32", defines=(("TILE", 4),)), True),
        (replace(BORNE, most_bytes=39), False),
        (replace(BORNE, arch="sm_90"), False),
        (replace(BORNE, kernel="winograd_transform_y"), False),
        (replace(BORNE, storage="FLOAT16"), False),
        (replace(BORNE, defines=(("TILE", 2),)), False),
    ],
)
def test_a_spill_is_borne_only_where_its_source_lists_it(
    borne: BorneSpill, is_listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SOURCES, "winograd", Source("winograd", spills=(borne,)))
    assert unlisted_spills([PLAIN, SPILLING]) == ([] if is_listed else [SPILLING])
    monkeypatch.setitem(SOURCES, "winograd", Source("winograd"))
    monkeypatch.setitem(SOURCES, "fft", Source("fft", spills=(borne,)))
    assert unlisted_spills([SPILLING]) == [SPILLING]


def test_every_spill_on_the_list_has_its_reason_and_is_of_something_that_is_compiled() -> None:
    compiled = {(compilation.source, compilation.arch) for compilation in compilations()}
    borne = [(source, spill) for source in SOURCES.values() for spill in source.spills]
    assert borne
    for source, spill in borne:
        assert len(spill.reason) > 20
        assert (source.name, spill.arch) in compiled
        cuts = [cut.items() for storage in STORAGES for cut in source.instantiations(storage)]
        own = {(name, value) for name, value in spill.defines if name not in MACROS}
        assert any(own <= set(cut) for cut in cuts)


def test_the_table_has_one_line_for_each_kernel_and_architecture() -> None:
    half = replace(SPILLING, compilation=replace(AT, storage="FLOAT16"), registers=126, spill_load_bytes=32)
    other = replace(PLAIN, compilation=replace(AT, arch="sm_100"))
    lines = resources.table([other, SPILLING, PLAIN, half]).splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        ["winograd", "winograd_fused", "sm_80"],
        ["winograd", "winograd_transform_y", "sm_80"],
        ["winograd", "winograd_transform_y", "sm_100"],
    ]
    assert lines[1].split()[3:] == ["2", "126-128", "32768", "24", "32-40"]


def test_the_report_names_what_spills_unlisted() -> None:
    unlisted = replace(SPILLING, compilation=replace(AT, arch="sm_90"))
    assert "UNLISTED SPILL: winograd.cu winograd_fused, sm_90 FLOAT32 TILE=4" in resources.report([unlisted, PLAIN])
    assert "UNLISTED" not in resources.report([PLAIN])


def test_the_report_names_what_is_assembled_wrongly() -> None:
    lost = replace(PLAIN, lost_copies=3)
    assert "LOST COPIES: 3 of winograd.cu winograd_transform_y, sm_80 FLOAT32" in resources.report([lost, SPILLING])
    assert "LOST" not in resources.report([PLAIN])


def test_a_source_for_one_exact_architecture_is_compiled_for_that_alone() -> None:
    for source in SOURCES:
        assert {each.arch for each in compilations([source])} == set(SOURCES[source].architectures)
        assert not [each for each in compilations([source], ["sm_80"]) if each.arch != "sm_80"]


def test_the_command_compiles_one_source_and_prints_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cuda.core", reason="cuda-core compiles without a GPU", exc_type=ImportError)
    assert resources.main(["im2col", "--arch", "sm_90"]) == 0
    assert "im2col_nchw" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        resources.main(["no-such-source"])
