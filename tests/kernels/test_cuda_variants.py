"""The rules, workspaces and cuts of the CUDA variants; pure arithmetic."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data import networks
from conv_advisor.data.epilogue import EVERY_EPILOGUE, Activation
from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import MAX_ELEMENTS, ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS as CATALOGUE
from conv_advisor.kernels.cuda.catalog import VARIANTS
from conv_advisor.kernels.cuda.direct import plan as direct_plan
from conv_advisor.kernels.cuda.fft import plan as fft_plan
from conv_advisor.kernels.cuda.gemm import plan as gemm_plan
from conv_advisor.kernels.cuda.parts.arithmetic import SHARED_BYTES, filters_per_thread
from conv_advisor.kernels.cuda.winograd import plan as winograd_plan
from conv_advisor.kernels.cudnn.variants import ENGINE_PREFIX, FUSED_PRODUCTS
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend, Variant

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
V100 = Device(id="tesla-v100", name="Tesla V100", kind="cuda", capability="7.0", processors=80)
BY_ID = {variant.id: variant for variant in VARIANTS}
MIB = 2**20
LARGE_TILES = ("cuda.winograd_nonfused_4x4_3x3", "cuda.winograd_nonfused_4x4_5x5")
NHWC = (
    *("cuda.gemm", "cuda.implicit_gemm_nhwc", "cuda.implicit_gemm_tma", "cuda.few_inputs", "cuda.few_outputs"),
    *("cuda.grouped", "cuda.depthwise", *LARGE_TILES),
)
LAST = ("cuda.implicit_gemm_nhwc", "cuda.implicit_gemm_tma", "cuda.few_inputs", "cuda.few_outputs")
"""Channels last alone, without groups."""
PACKED = ("cuda.implicit_gemm_nhwc", "cuda.implicit_gemm_transposed")


def reason(variant_id: str, layer: str, **changes: object) -> str | None:
    return BY_ID[variant_id].why_not(ConvProblem.parse(layer, **changes), H200)


def workspace(variant_id: str, layer: str, **changes: object) -> int | None:
    return BY_ID[variant_id].workspace_bytes(ConvProblem.parse(layer, **changes), H200)


def test_the_ids_never_change() -> None:
    assert [variant.id for variant in VARIANTS] == [
        "cuda.direct_naive",
        "cuda.direct_constant",
        "cuda.direct_tiled_halo",
        "cuda.direct_tiled_cached",
        "cuda.cuconv",
        "cuda.gemm",
        "cuda.implicit_gemm",
        "cuda.implicit_gemm_nhwc",
        "cuda.implicit_gemm_transposed",
        "cuda.implicit_gemm_tma",
        "cuda.implicit_gemm_tma_transposed",
        "cuda.implicit_gemm_tma_packed",
        "cuda.few_inputs",
        "cuda.few_outputs",
        "cuda.fft",
        "cuda.winograd_fused",
        "cuda.winograd_nonfused",
        "cuda.winograd_nonfused_4x4_3x3",
        "cuda.winograd_nonfused_4x4_5x5",
        "cuda.pointwise",
        "cuda.depthwise",
        "cuda.grouped",
    ]
    assert all(variant.backend is Backend.CUDA and variant.is_deterministic for variant in VARIANTS)


@pytest.mark.parametrize("dtype", DType)
@pytest.mark.parametrize("variant_id", BY_ID)
def test_a_plain_3x3_layer_is_for_every_variant_but_one(variant_id: str, dtype: DType) -> None:
    size = 5 if variant_id.endswith("5x5") else 1 if variant_id == "cuda.pointwise" else 3
    layout = "nhwc" if variant_id in LAST else "nchw"
    channels = 3 if variant_id == "cuda.few_inputs" else 16
    filters = 8 if variant_id == "cuda.few_outputs" else 32
    groups = 2 if variant_id == "cuda.grouped" else 1
    expected = "dtype is float32" if variant_id in PACKED and dtype is DType.FLOAT32 else "applies"
    if variant_id in LARGE_TILES and dtype is not DType.FLOAT32:
        expected = f"dtype is {dtype}, not float32"
    if variant_id == "cuda.implicit_gemm_tma_transposed" and dtype.itemsize_bytes == 4:
        expected = f"dtype is {dtype}, not float16 or bfloat16"
    if variant_id == "cuda.implicit_gemm_tma_packed" and dtype.itemsize_bytes == 2:
        expected = f"dtype is {dtype}, not float32 or tf32"
    if variant_id == "cuda.depthwise":
        expected = f"groups is {groups}, with {16 // groups} of the 16 channels each"
    changes = {"dtype": dtype, "layout": layout, "groups": groups}
    assert expected in (reason(variant_id, f"14-8-{size}-{filters}-{channels}", **changes) or "applies")


@pytest.mark.parametrize(
    ("variant_id", "layer", "changes", "expected"),
    [
        *[(id_, "14-1-3-8-8", {"layout": "nhwc"}, "layout is nhwc") for id_ in BY_ID if id_ not in NHWC],
        ("cuda.implicit_gemm_nhwc", "14-1-3-8-8", {"dtype": "float16"}, "layout is nchw"),
        ("cuda.implicit_gemm_transposed", "14-1-3-8-8", {"dtype": "float16", "groups": 2}, "groups is 2"),
        *[
            ("cuda.few_inputs", layer, {"dtype": "float16", "layout": "nhwc", **change}, expected)
            for layer, change, expected in (
                ("14-1-3-8-3", {"layout": "nchw"}, "applies"),
                ("14-1-3-8-5", {}, "applies"),
                ("14-1-3-8-72", {}, "c is 72, above 64"),
                ("14-1-3-8-16", {"dtype": "tf32"}, "c is 16, above 4"),
                ("14-1-3-8-16", {}, "applies"),
                ("14-1-8-8-8", {}, "filter is 8x8, above 7"),
                ("14-1-5-8-48", {}, "a filter has 1200 elements, above 1176"),
                ("14-1-3-8-8", {"stride_h": 3}, "stride is 3x1, above 2"),
                ("14-1-3-11-3", {}, "applies"),
                ("14-1-3-12-3", {"layout": "nchw"}, "k is 12, not a multiple of 8"),
                ("14-1-3-8-2", {"groups": 2}, "groups is 2"),
                ("14-1-12-8-3", {}, "filter is 12x12, above 11"),
                ("14-1-3-8-3", {"stride_w": 5}, "stride is 1x5, above 4"),
                ("14-1-3-8-3", {"dilation_h": 2}, "dilation is 2x1"),
                ("14-1-3-8-3", {"pad_w_end": 0}, "applies"),
                ("14-1-3-8-3", {"dtype": "float32"}, "applies"),
                ("14-1-3-8-3", {"dtype": "tf32"}, "applies"),
            )
        ],
        *[
            ("cuda.few_outputs", layer, {"layout": "nhwc", **change}, expected)
            for layer, change, expected in (
                ("14-1-3-8-8", {"layout": "nchw"}, "layout is nchw"),
                ("14-1-3-9-8", {}, "k is 9, above 8"),
                ("14-1-3-4-8", {"groups": 2}, "groups is 2"),
                ("14-1-12-1-8", {}, "filter is 12x12, above 11"),
                ("14-1-6-8-8", {}, "8 filters have 48 taps in a row, above 40"),
                ("14-1-3-4-8", {"stride_w": 2}, "stride is 1x2"),
                ("14-1-3-4-8", {"dilation_h": 2}, "dilation is 2x1"),
                ("14-1-3-4-7", {}, "c is 7, below 8"),
                ("14-1-3-4-7", {"dtype": "float16"}, "applies"),
                ("14-1-16-2-1", {"dtype": "float16"}, "applies"),
                ("14-1-17-1-1", {"dtype": "float16"}, "filter is 17x17, above 16"),
                ("14-1-11-4-1", {"dtype": "bfloat16"}, "4 filters have 44 taps in a row, above 40"),
                ("14-1-11-3-9", {}, "applies"),
            )
        ],
        *[
            ("cuda.implicit_gemm_tma", layer, {"dtype": "float16", "layout": "nhwc", **change}, expected)
            for layer, change, expected in (
                ("14-1-3-8-8", {"layout": "nchw"}, "layout is nchw"),
                ("14-1-3-8-8", {"groups": 2}, "groups is 2"),
                ("14-1-3-8-3", {}, "c and k are 3 and 8, not multiples of 8"),
                ("14-1-3-12-8", {}, "c and k are 8 and 12, not multiples of 8"),
                ("14-1-3-12-4", {"dtype": "tf32"}, "applies"),
                ("14-1-3-12-4", {"dtype": "float32"}, "applies"),
                ("14-1-3-12-2", {"dtype": "tf32"}, "c and k are 2 and 12, not multiples of 4"),
                ("14-1-3-8-8", {"stride_w": 9}, "stride is 1x9, above 8"),
                ("32-1-16-8-3-stride16-pad0", {}, "applies"),
                ("28-1-14-8-3-stride14-pad0", {}, "c and k are 42 and 8, not multiples of 8"),
                ("14-1-3-8-8", {"pad_w_end": 0}, "applies"),
            )
        ],
        *[
            (id_, "14-1-3-8-8", change, expected)
            for id_ in ("cuda.direct_tiled_halo", "cuda.direct_tiled_cached", "cuda.fft", "cuda.winograd_fused")
            for change, expected in (
                ({"stride_h": 2, "stride_w": 2}, "stride is 2x2"),
                ({"dilation_h": 2, "dilation_w": 2}, "dilation is 2x2"),
                ({"groups": 2}, "groups is 2"),
            )
        ],
        ("cuda.cuconv", "14-1-3-8-8", {"groups": 2}, "groups is 2"),
        ("cuda.implicit_gemm", "14-1-3-8-8", {"groups": 2}, "groups is 2"),
        ("cuda.implicit_gemm", "40-1-33-1-1", {}, "1089 taps, above 1024"),
        ("cuda.implicit_gemm", "14-1-9-1-1", {"dtype": "float16"}, "81 taps, above 57"),
        ("cuda.winograd_fused", "14-1-5-8-8", {}, "filter is 5x5"),
        ("cuda.winograd_nonfused", "14-1-1-8-8", {}, "filter is 1x1"),
        ("cuda.winograd_nonfused_4x4_3x3", "14-1-5-8-8", {}, "filter is 5x5"),
        ("cuda.winograd_nonfused_4x4_5x5", "14-1-3-8-8", {}, "filter is 3x3"),
        *[
            ("cuda.winograd_nonfused_4x4_3x3", "14-1-3-9-7", {"layout": "nhwc", **change}, expected)
            for change, expected in (
                ({"pad_w_end": 0}, "applies"),
                ({"stride_w": 2}, "stride is 1x2"),
                ({"dilation_h": 2}, "dilation is 2x1"),
                ({"dtype": "tf32"}, "dtype is tf32, not float32"),
            )
        ],
        ("cuda.pointwise", "14-1-3-8-8", {}, "filter is 3x3, not 1x1"),
        ("cuda.pointwise", "14-1-1-8-8", {"stride_w": 2, "dtype": "float16"}, "stride is 1x2"),
        ("cuda.pointwise", "14-1-1-8-8", {"stride_w": 2, "dtype": "tf32"}, "applies"),
        ("cuda.pointwise", "14-1-1-8-8", {"pad_h": 1}, "padding is 1x0, not 0x0"),
        ("cuda.grouped", "14-1-3-8-8", {}, "groups is 1, with 8 of the 8 channels each"),
        ("cuda.grouped", "14-1-3-8-8", {"groups": 8}, "groups is 8, with 1 of the 8 channels each"),
        ("cuda.grouped", "40-1-33-8-8", {"groups": 2}, "1089 taps, above 1024"),
        ("cuda.depthwise", "14-1-3-16-8", {"groups": 4}, "groups is 4, with 2 of the 8 channels each"),
        ("cuda.depthwise", "14-1-3-16-1", {}, "groups is 1, with 1 of the 1 channels each"),
        ("cuda.depthwise", "14-1-3-16-8", {"groups": 8, "stride_h": 2, "dilation_w": 3}, "applies"),
        ("cuda.direct_tiled_halo", "512-1-512-1-1", {}, "shared memory"),
        ("cuda.direct_constant", "512-1-512-1-1", {}, "1048576 bytes"),
        ("cuda.gemm", "512-1-512-1-1", {}, "im2col matrix of one image has 68988174336 elements"),
    ],
)
def test_a_variant_says_why_it_does_not_apply(
    variant_id: str, layer: str, changes: dict[str, object], expected: str
) -> None:
    assert expected in (reason(variant_id, layer, **changes) or "applies")


@pytest.mark.parametrize("variant_id", ["cuda.direct_naive", "cuda.direct_constant", "cuda.gemm"])
@pytest.mark.parametrize(
    "change", [{"stride_h": 2}, {"dilation_w": 2}, {"groups": 4}, {"pad_h": 3}], ids=lambda change: next(iter(change))
)
def test_the_general_variants_take_any_geometry(variant_id: str, change: dict[str, object]) -> None:
    assert reason(variant_id, "14-1-3-8-8", **change) is None


@pytest.mark.parametrize("variant_id", BY_ID)
def test_an_older_gpu_is_named(variant_id: str) -> None:
    assert "7.0" in (BY_ID[variant_id].why_not(ConvProblem.parse("14-1-3-8-8"), V100) or "")


@pytest.mark.parametrize("variant_id", BY_ID)
def test_positions_in_a_padded_input_fit_32_bits(variant_id: str) -> None:
    problem = ConvProblem(1, 1, 1, 1, 1, 3, 3, stride_h=2**29, pad_h=2**30, pad_w=1)
    assert "2147483649" in (BY_ID[variant_id].why_not(problem, H200) or "")


@pytest.mark.parametrize(("filter_size", "capability"), [(3, "8.0"), (5, "10.0")])
def test_the_large_tiles_are_for_hopper_alone(filter_size: int, capability: str) -> None:
    variant = BY_ID[f"cuda.winograd_nonfused_4x4_{filter_size}x{filter_size}"]
    device = Device(id="other", name="other", kind="cuda", capability=capability, processors=132)
    reason = variant.why_not(ConvProblem.parse(f"14-1-{filter_size}-8-8"), device)
    assert reason == f"compute capability is {capability}, and only 9.0 has wgmma"


@pytest.mark.parametrize(("variant_id", "layout"), list(zip(PACKED, ("nhwc", "nchw"), strict=True)))
def test_the_channels_innermost_gemm_takes_any_geometry_on_hopper(variant_id: str, layout: str) -> None:
    changes = {"dtype": "tf32", "layout": layout, "stride_h": 2, "dilation_w": 3, "pad_h": 4}
    assert reason(variant_id, "14-1-5-8-7", **changes) is None
    device = Device(id="other", name="other", kind="cuda", capability="8.0", processors=108)
    assert "only 9.0" in (BY_ID[variant_id].why_not(ConvProblem.parse("14-1-5-8-7", **changes), device) or "")


def test_a_filter_of_exactly_64_kb_fits_constant_memory() -> None:
    assert reason("cuda.direct_constant", "128-1-128-1-1") is None
    assert reason("cuda.direct_constant", "129-1-129-1-1") is not None
    assert reason("cuda.direct_constant", "129-1-129-1-1", dtype="float16") is None


def test_constant_memory_is_not_filled_too_often() -> None:
    assert reason("cuda.direct_constant", "7-1-1-256-16384") is None
    assert "257 fillings" in (reason("cuda.direct_constant", "7-1-1-257-16384") or "")


@pytest.mark.parametrize("layer", ["14-1-3-256-128", "7-1-3-512-512", "13-1-1-1000-512", "28-1-5-32-16"])
def test_constant_memory_holds_what_it_is_filled_with(layer: str) -> None:
    problem = ConvProblem.parse(layer)
    filters = direct_plan.constant_filters(problem)
    assert 1 <= filters <= problem.k
    assert filters * problem.gemm_k * 4 <= direct_plan.CONSTANT_BYTES


def test_workspaces_by_hand() -> None:
    assert workspace("cuda.direct_naive", "14-8-3-32-16") == 0
    assert workspace("cuda.winograd_fused", "14-8-3-32-16") == 0
    assert workspace("cuda.cuconv", "14-8-5-64-24") == 25 * 8 * 64 * 14 * 14 * 4
    assert workspace("cuda.cuconv", "14-8-1-64-24") == 0
    assert workspace("cuda.gemm", "14-8-1-64-24") == 32 * MIB
    assert workspace("cuda.gemm", "14-8-3-64-24") == 32 * MIB + 8 * 24 * 9 * 14 * 14 * 4
    assert workspace("cuda.gemm", "14-8-3-64-24", dtype="float16") == 32 * MIB + 8 * 24 * 9 * 14 * 14 * 2
    assert workspace("cuda.winograd_nonfused", "7-8-3-64-24") == 32 * MIB + 4 * 16 * (64 * 24 + 8 * 16 * (64 + 24))
    # 14 + 1 rounds up to 15 rows of 15 columns: 8 complex frequencies each.
    assert workspace("cuda.fft", "14-8-3-64-24") == (8 * 24 + 64 * 24 + 8 * 64) * 15 * 9 * 8


def seed_problems() -> list[ConvProblem]:
    """The seed networks at their smallest and largest batch, and the filter sweep."""
    layers = [layer.problem.short.split("-") for layer in networks.layers("seeds")]
    batched = [f"{size}-{n}-{r}-{k}-{c}" for size, _, r, k, c in layers for n in (1, 256)]
    sweep = [layer.problem.short for layer in networks.layers("fourth-seed")]
    return [ConvProblem.parse(layer) for layer in (*batched, *sweep)]


@pytest.mark.parametrize("variant_id", sorted(set(BY_ID) - {"cuda.cuconv"}))
def test_only_cuconv_outgrows_the_default_limit_on_the_seed_layers(variant_id: str) -> None:
    variant = BY_ID[variant_id]
    sweep = {layer.problem for layer in networks.layers("fourth-seed")}
    for problem in seed_problems():
        if variant.why_not(problem, H200) is None and (variant_id != "cuda.gemm" or problem not in sweep):
            needed = variant.workspace_bytes(problem, H200)
            assert needed is not None
            assert needed <= DEFAULT_WORKSPACE_LIMIT_BYTES, problem.short


@pytest.mark.parametrize("variant_id", ["cuda.direct_naive", "cuda.fft"])
def test_every_experiment_has_a_direct_and_an_fft_variant(variant_id: str) -> None:
    assert not [p.short for p in seed_problems() if BY_ID[variant_id].why_not(p, H200)]


@pytest.mark.parametrize("plan", [gemm_plan.plan_gemm, winograd_plan.plan_winograd, fft_plan.plan_fft])
@pytest.mark.parametrize("layer", ["14-37-3-32-16", "28-256-3-64-48", "7-5-3-1-1"])
def test_what_a_plan_says_it_needs_is_enough_and_less_is_not(plan: object, layer: str) -> None:
    assert callable(plan)
    problem = ConvProblem.parse(layer)
    with pytest.raises(WorkspaceExceeded) as raised:
        plan(problem, 1)
    needed = raised.value.needed_bytes
    assert plan(problem, needed).images == 1
    with pytest.raises(WorkspaceExceeded):
        plan(problem, needed - 1)


@pytest.mark.parametrize("limit_bytes", [2**26, 2**30, 2**31, 2**34])
@pytest.mark.parametrize("layer", ["56-64-3-64-64", "224-256-3-128-64", "7-8-3-14000-14000", "1000-4-5-500-64"])
def test_what_is_needed_is_above_a_limit_where_the_workspace_is(layer: str, limit_bytes: int) -> None:
    problem = ConvProblem.parse(layer)
    for variant in VARIANTS:
        workspace, needed = variant.workspace_bytes(problem, H200), variant.needed_bytes(problem, H200, limit_bytes)
        assert workspace is not None
        assert needed is not None
        assert (needed > limit_bytes) == (workspace > limit_bytes), variant.id


@settings(deadline=None)
@given(images=st.integers(1, 300), limit=st.integers(0, 200 * MIB))
def test_chunks_fit_the_limit_and_cover_the_batch(images: int, limit: int) -> None:
    problem = ConvProblem.parse(f"13-{images}-3-24-12")
    for plan_images, used in ((gemm_plan.plan_gemm, "workspace_bytes"), (fft_plan.plan_fft, "buffers_bytes")):
        try:
            plan = plan_images(problem, limit)
        except WorkspaceExceeded:
            continue
        assert 1 <= plan.images <= images
        assert getattr(plan, used) <= limit


@settings(deadline=None)
@given(least=st.integers(1, 5000))
def test_an_fft_size_is_the_next_product_of_small_primes(least: int) -> None:
    size = fft_plan.fft_size(least)
    assert size >= least
    assert all(not is_smooth(between) for between in range(least, size))
    assert is_smooth(size)


def is_smooth(size: int) -> bool:
    """Whether 2, 3, 5 and 7 are its only prime factors."""
    return 210**13 % size == 0


@settings(deadline=None)
@given(h=st.integers(1, 70), w=st.integers(1, 70), r=st.integers(1, 90), s=st.integers(1, 90), c=st.integers(1, 600))
def test_tiles_fit_shared_memory_and_blocks(h: int, w: int, r: int, s: int, c: int) -> None:
    problem = ConvProblem(1, c, h, w, 9, r, s, pad_h=r // 2, pad_w=s // 2)
    for has_halo in (True, False):
        tile = direct_plan.plan_tiles(problem, has_halo=has_halo)
        if tile is None:
            assert 4 * (r * s + (8 + r - 1) * (8 + s - 1) * has_halo + 64 * (not has_halo)) > SHARED_BYTES
            continue
        assert 64 <= tile.width * tile.height <= 256
        assert tile.shared_bytes <= SHARED_BYTES
        assert 1 <= tile.stage_channels <= c


@pytest.mark.parametrize(("filters", "pixels", "expected"), [(64, 10**6, 8), (5, 10**6, 4), (1, 10**6, 1), (64, 49, 1)])
def test_a_thread_computes_fewer_filters_where_threads_are_few(filters: int, pixels: int, expected: int) -> None:
    assert filters_per_thread(direct_plan.FILTERS, filters, pixels, H200.processors) == expected


@pytest.mark.parametrize(("images", "filters", "expected"), [(32, 64, (4, 4)), (1, 64, (1, 4)), (1, 1, (1, 1))])
def test_the_tile_of_the_fft_product_fills_up(images: int, filters: int, expected: tuple[int, int]) -> None:
    assert fft_plan.fft_tile(images, filters, 10**5, H200.processors) == expected


def test_a_chunk_keeps_indices_within_32_bits() -> None:
    problem = ConvProblem.parse("224-256-3-64-64")
    plan = gemm_plan.plan_gemm(problem, 2**40)
    assert plan.images * gemm_plan.column_elements(problem) <= MAX_ELEMENTS
    assert ceil(problem.n / plan.images) > 1
    assert fft_plan.plan_fft(problem, 2**40).buffers_bytes < 4 * 2**31


@pytest.mark.parametrize("layout", list(Layout))
@pytest.mark.parametrize("dtype", list(DType))
def test_a_device_of_which_nothing_is_known_is_asked_for_no_more_than_it_has(dtype: DType, layout: Layout) -> None:
    """A tree's card names its device, and no more: rules and workspaces answer, whatever they answer."""
    unknown = Device(id="toy-gpu", name="Toy GPU", kind="cuda", capability="9.0")
    for layer in ("8-2-3-6-4", "14-1-3-256-128", "27-8-5-64-96", "56-32-1-64-256"):
        problem = ConvProblem.parse(layer, dtype=dtype, layout=layout)
        for variant in VARIANTS:
            if variant.why_not(problem, unknown) is None:
                assert variant.workspace_bytes(problem, unknown) >= 0


@pytest.mark.parametrize(
    "variant",
    [v for v in CATALOGUE.values() if v.backend.device_kind == "cuda" and v.id != f"{ENGINE_PREFIX}{FUSED_PRODUCTS}"],
    ids=lambda v: v.id,
)
def test_an_epilogue_and_uneven_padding_are_taken_where_the_convolution_alone_is(variant: Variant) -> None:
    kinds = [{"dtype": dtype, "layout": layout} for dtype in DType for layout in Layout]
    for kind in kinds:
        plain = variant.why_not(ConvProblem.parse("14-1-3-8-8", **kind), H200)
        for epilogue in EVERY_EPILOGUE[1:]:
            refused = variant.why_not(ConvProblem.parse("14-1-3-8-8", epilogue=epilogue, **kind), H200)
            if variant.backend is Backend.CUDNN_GRAPH and epilogue.activation is Activation.HARDSWISH:
                assert refused == "activation is hardswish, for which cuDNN's graph API has no node"
            else:
                assert refused == plain
        refused = variant.why_not(ConvProblem.parse("14-1-3-8-8", pad_w_end=0, **kind), H200)
        if variant.backend is Backend.CUDNN_LEGACY:
            assert refused == "padding is 1x1 and 1x0, and the legacy API has one number for opposite sides"
        else:
            assert refused == plain


def test_a_variant_of_its_own_that_does_not_say_how_it_ends_refuses_epilogues() -> None:
    assert all(variant.ending for variant in CATALOGUE.values())
    alone = replace(CATALOGUE["cpu.direct"], ending=None)
    refused = alone.why_not(ConvProblem.parse("14-1-3-8-8-bias"), H200)
    assert refused == "epilogue is bias, and it computes the convolution alone"
