"""The tables of kernels by themselves, from rows made up here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.stages import __main__ as stages
from benchmarks.stages import tables
from benchmarks.stages.papers import PRINTED
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog

ROOT = Path(__file__).parents[2]

SUMS = {
    ("cuConv", "7-1-3-384-192", "cuda.cuconv"): 57.79,
    ("cuConv", "13-1-3-384-384", "cudnn.winograd_nonfused"): 327.55,
    ("cuConv", "7-8-5-128-48", "cuda.cuconv"): 116.60,
    ("cuDNN study", "14-1-3-256-128", "cudnn.winograd_nonfused"): 91.01,
    ("cuDNN study", "14-8-1-256-512", "cudnn.implicit_precomp_gemm_tc"): 41.32,
}
"""What the papers print as totals, the study's less its delays."""


def stage(name: str, time_ms: float, blocks: int = 8) -> dict:
    return {"name": name, "time_ms": time_ms, "blocks": blocks, "threads": 64, "registers": 32, "occupancy": 0.5}


def row(part: str, layer: str, variant: str, *found: dict, **forced: int) -> dict:
    of = {"part": part, "layer": layer, "dtype": "float32", "variant": variant, "forced": forced}
    return of | ({"stages": list(found)} if found else {"error": "no plan"})


def test_every_printed_row_is_a_variant_of_ours_that_takes_the_layer():
    for printed in PRINTED:
        variant = catalog.get(printed.variant)
        assert variant.id == printed.variant
        assert printed.problem.short == printed.layer


@pytest.mark.parametrize(("key", "total_us"), SUMS.items())
def test_the_kernels_sum_to_what_is_printed(key: tuple[str, str, str], total_us: float):
    (printed,) = (each for each in PRINTED if (each.paper, each.layer, each.variant) == key)
    assert printed.total_us == pytest.approx(total_us, abs=0.02)


def test_a_row_has_its_kernels_and_cycles_a_channel_of_both():
    found = row("papers", "7-1-3-384-192", "cuda.cuconv", stage("cuconv_scalar_products", 0.010), stage("sum", 0.002))
    (line,) = [
        line for line in tables.papers([found], "cuConv", 1000).splitlines() if "7-1-3-384-192 float32 | `cuda" in line
    ]
    assert "cuconv_scalar_products 10.0 (8 blocks, 50 %) + sum 2.0 (8 blocks, 50 %) = **12.0**" in line
    # 57.79 µs at 1,530 MHz and 12 µs at 1,000 MHz, over 192 channels
    assert line.endswith("| 461 | 62 |")


def test_what_did_not_run_says_why():
    found = row("papers", "7-1-3-384-192", "cuda.cuconv")
    assert "| no plan | 461 | - |" in tables.papers([found], "cuConv", 1000)


def test_rows_a_block_name_the_fastest():
    layer = "7-1-1-256-832"
    found = [
        row("rows", layer, "cuda.cuconv", stage("pointwise", ms), filters=count)
        for count, ms in ((1, 0.02), (4, 0.01), (16, 0.04))
    ]
    assert "| 7-1-1-256-832 | 20.0 | **10.0** | 40.0 | none | 12 |" in tables.rows_a_block(found, 1000)


def test_the_copy_to_the_symbol_is_not_counted_as_the_kernels():
    copy = stage("memcpy", 0.002, blocks=0)
    found = [
        row("post", "512-1-3-1-1", "cuda.direct_constant", copy, stage("direct_constant", ms), is_size_fixed=fixed)
        for fixed, ms in ((0, 0.005), (1, 0.004))
    ]
    assert "| 512-1-3-1-1 | constant | 5.0 | 4.0 | 2.0 | 0.50 |" in tables.post(found)


def test_operations_a_byte_are_the_posts():
    problem = ConvProblem.parse("512-1-5-1-1")
    assert tables.operations_a_byte("cuda.direct_naive", problem) == 0.25
    assert tables.operations_a_byte("cuda.direct_constant", problem) == 0.5
    assert tables.operations_a_byte("cuda.direct_tiled_halo", problem) == pytest.approx(2 * 25 * 256 / (4 * 36 * 12))


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("cuconv_pointwise", "cuconv_pointwise"),
        ("_Z23implicit_convolve_sgemmI6__halfS0_Li128ELi5E", "implicit_convolve_sgemm"),
        ("_ZN5cudnn17winograd_nonfused22winogradForwardData4x4IffEEvNS0_", "winogradForwardData4x4"),
        (
            "_ZN7cutlass7Kernel2I43cutlass_80_simt_sgemm_256x128_8x4_nn_align1EEvNT_",
            "cutlass_80_simt_sgemm_256x128_8x4_nn_...",
        ),
    ],
)
def test_mangled_names_are_read(name: str, short: str):
    assert short in tables.said(row("papers", "7-1-1-256-832", "cuda.cuconv", stage(name, 0.01)))


PAGES = ("kernels.md", "guidelines.md")


def test_the_pages_show_what_was_measured():
    document = json.loads((ROOT / "benchmarks" / "results" / "stages-nvidia-h100.json").read_text())
    pages = "".join((ROOT / "docs" / page).read_text() for page in PAGES)
    for part in tables.parts(document).values():
        assert part in pages


def test_a_report_prints_every_table(tmp_path, capsys):
    found = row("papers", "7-1-3-384-192", "cuda.cuconv", stage("k", 0.01))
    path = tmp_path / "stages.json"
    path.write_text(json.dumps({"device": {"max_clock_mhz": 1980}, "rows": [found]}))
    assert stages.main(["--report", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "### cuConv's tables 3 to 5" in printed
    assert "### The cuDNN study's tables 2 to 6" in printed


def test_a_file_that_is_none_is_refused(tmp_path, capsys):
    assert stages.main(["--report", str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json" in capsys.readouterr().err
