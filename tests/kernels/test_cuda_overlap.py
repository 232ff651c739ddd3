"""Kernels that overlap the one ahead of them wait for it before they touch memory, and only where that is asked for."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext
from threading import Thread
from typing import Any

import pytest

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.catalog import get
from conv_advisor.kernels.cuda.catalog import FAMILIES
from conv_advisor.kernels.cuda.parts.epilogue import defines_of
from conv_advisor.kernels.cuda.parts.launching import _Config, prepare_start
from conv_advisor.kernels.cuda.parts.overlap import MACRO, overlapping, overlaps
from conv_advisor.kernels.cuda.parts.source import STORAGES, Source
from conv_advisor.kernels.cuda.resources import Compilation, compile_one, with_lost_copies
from conv_advisor.kernels.cuda.sass import code_of, opcodes
from tests.kernels.accelerator import GPU

WAIT, LET_BEGIN, END = 0x82E, 0x82D, 0x94D
"""``ACQBULK``, ``PREEXIT`` and ``EXIT``, as ptxas 13.0 assembles the two instructions and a kernel's end."""
TOUCHES_MEMORY = {
    **{0x980: "LD", 0x981: "LDG", 0x985: "ST", 0x986: "STG", 0xFAE: "LDGSTS", 0x9A3: "ATOMG", 0x9A6: "REDG"},
    **{0x5B4: "UTMALDG", 0x3B5: "UTMASTG", 0x3BA: "UBLKCP"},
}
BY_BOXES = ("implicit_gemm_tma", "implicit_gemm_tma_small", "implicit_gemm_tma_split")
"""Sources whose loads are the tensor memory accelerator's alone."""
IN_BULK = ("winograd_gemm",)
"""Sources whose loads are its copies without a map."""
MOST_SPILLED = {("pointwise", "FLOAT32"): 64}
"""Its largest tile has no register left for the prefetch: some sizes wait in local memory until the wait is over."""

SOURCES = [source for family in FAMILIES for source in family.kernel().sources]
EVERYTHING = Epilogue(bias=True, residual=True, activation=Activation.RELU)


def test_what_networks_are_made_of_waits() -> None:
    assert {source.name for source in SOURCES if source.waits} == {
        *("implicit_gemm", "implicit_gemm_tensor", "implicit_gemm_nhwc", "nhwc_pack", "pointwise"),
        *("implicit_gemm_tma", "implicit_gemm_tma_small", "implicit_gemm_tma_split", "implicit_gemm_straight"),
        *("implicit_gemm_tma_transposed", "nhwc_unpack"),
        *("depthwise", "depthwise_channels", "depthwise_nhwc", "depthwise_any", "grouped", "appended"),
        *("few_inputs", "few_inputs_narrow", "few_inputs_float32", "few_inputs_wgmma"),
        *("few_inputs_taps", "few_outputs", "few_outputs_rows"),
        *("winograd_large", "winograd_large_nhwc", "winograd_gemm"),
    }


@pytest.mark.slow
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("source", [source for source in SOURCES if source.waits], ids=lambda source: source.name)
def test_no_kernel_touches_memory_or_ends_before_its_wait(source: Source, storage: str) -> None:
    listed = source.instantiations(storage)
    arch = source.architecture or "sm_90"
    for defines in {id(each): each for each in (*listed[:1], *listed[-1:])}.values():
        ended = defines | (defines_of(EVERYTHING) if source.takes_epilogue else {})
        everything = Compilation(source.name, storage, arch, tuple((ended | {MACRO: 1}).items()))
        cubin, _, taken = compile_one(everything)
        assert not with_lost_copies(taken)
        assert max(each.spilled_bytes for each in taken) <= MOST_SPILLED.get((source.name, storage), 0)
        for name, code in code_of(cubin).items():
            found = opcodes(code)
            assert found.count(WAIT) == found.count(LET_BEGIN) == 1, name
            wait = found.index(WAIT)
            assert wait < found.index(LET_BEGIN), name
            assert not TOUCHES_MEMORY.keys() & set(found[:wait]), name
            assert END not in found[:wait], name
            touched = {TOUCHES_MEMORY.get(each, "") for each in found[wait:]}
            loads = "UTMALDG" if source.name in BY_BOXES else "UBLKCP" if source.name in IN_BULK else "LDG"
            assert loads in touched or "LDGSTS" in touched, name


def test_only_who_asks_overlaps_and_only_where_the_kernel_waits() -> None:
    waiting, other = Source("appended"), Source("fft")
    assert not overlaps(waiting)
    with overlapping():
        assert overlaps(waiting)
        assert not overlaps(other)
        elsewhere: list[bool] = []
        thread = Thread(target=lambda: elsewhere.append(overlaps(waiting)))
        thread.start()
        thread.join()
        assert elsewhere == [False]
    assert not overlaps(waiting)


NHWC = ConvProblem.parse("14-2-1-64-64", dtype="float16", layout="nhwc")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that launchers load, and the launches that they prepare, with "early" where these overlap."""
    seen: list[str] = []

    def told(what: str, *, early: bool) -> Any:
        seen.append(f"{what} early" if early else what)
        return Kernel()

    for family in ("implicit_gemm_nhwc", "implicit_gemm_tma", "few_inputs"):
        launcher = f"conv_advisor.kernels.cuda.{family}.launch"
        monkeypatch.setattr(f"{launcher}.load_kernel", lambda source, *_, **__: told("kernel", early=overlaps(source)))
        monkeypatch.setattr(
            f"{launcher}.prepare_start", lambda *_, overlaps=False, **__: told("launch", early=overlaps)
        )
    return seen


@pytest.mark.parametrize("is_asked", [False, True])
@pytest.mark.parametrize(
    ("variant", "problem"),
    [
        ("cuda.implicit_gemm_nhwc", NHWC),
        ("cuda.implicit_gemm_tma", NHWC),
        ("cuda.few_inputs", ConvProblem.parse("13-2-3-64-16", dtype="float16", layout="nhwc")),
    ],
)
def test_what_writes_within_overlaps_as_the_whole_launch_does_and_loads_no_kernel_of_its_own(
    variant: str, problem: ConvProblem, is_asked: bool, loaded: list[str]
) -> None:
    with overlapping() if is_asked else nullcontext():
        launch = get(variant).prepare(problem, GPU, 2**30)
    first, loaded[:] = set(loaded), []
    assert launch.within is not None
    with nullcontext() if is_asked else overlapping():  # whatever holds when the first graph runs
        launch.within(problem.k + 16)
    early = " early" * is_asked
    assert first == {f"kernel{early}", f"launch{early}"}
    assert loaded == [f"launch{early}"]


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_prologue_overlaps_as_what_it_was_prepared_with_and_is_loaded_once(is_asked: bool, loaded: list[str]) -> None:
    with overlapping() if is_asked else nullcontext():
        launch = get("cuda.implicit_gemm_nhwc").prepare(NHWC, GPU, 2**30)
    assert launch.behind_prologue is not None
    of_prologue, early = len(loaded), " early" * is_asked
    for channels in (64, 128):
        with nullcontext() if is_asked else overlapping():
            launch.behind_prologue(channels)
    assert loaded[of_prologue:] == [f"kernel{early}", f"launch{early}", f"launch{early}"]


class Driver:
    """Takes launches in the driver's place."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []

    def cuLaunchKernelEx(self, place: int, function: int, parameters: int, extra: None) -> int:  # noqa: N802 the driver's
        config = _Config.from_address(place)
        attributes = [(each.id, each.value[0]) for each in config.attributes[: config.n_attributes]]
        first = (ctypes.c_void_p * 1).from_address(parameters)[0] or 0
        address = ctypes.c_uint64.from_address(first).value
        sizes = (config.grid_x, config.grid_y, config.block_x, config.shared_bytes, config.stream or 0)
        self.launched.append((sizes, attributes, function, address, extra))
        return 0

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:  # noqa: N802 the driver's
        self.launched.append((function, attribute, value))
        return 0


class Kernel:
    """A loaded kernel, as CuPy has it, and a stream."""

    ptr = 77

    @property
    def kernel(self) -> Kernel:
        return self


@pytest.mark.parametrize(
    ("cluster", "early", "attributes"),
    [(1, False, []), (4, False, [(4, 4)]), (1, True, [(6, 1)]), (2, True, [(4, 2), (6, 1)])],
)
def test_the_driver_is_told_of_clusters_and_of_overlap(
    cluster: int, early: bool, attributes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver()
    launching = "conv_advisor.kernels.cuda.parts.launching"
    monkeypatch.setattr(f"{launching}._driver", lambda: driver)
    monkeypatch.setattr(f"{launching}.current_stream", lambda: 77)
    start = prepare_start(Kernel(), (8, 2, 1), 128, 1024, (5, 6), cluster=cluster, overlaps=early)
    start(2**40)
    start(2**41)
    assert driver.launched == [
        ((8, 2, 128, 1024, 77), attributes, 77, 2**40, None),
        ((8, 2, 128, 1024, 77), attributes, 77, 2**41, None),
    ]


def test_a_cluster_that_is_large_is_allowed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    monkeypatch.setattr("conv_advisor.kernels.cuda.parts.launching._driver", lambda: driver)
    prepare_start(Kernel(), (16, 1, 1), 128, 0, (), cluster=16)
    assert driver.launched == [(77, 14, 1)]
