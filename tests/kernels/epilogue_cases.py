"""What `test_cuda_epilogue_gpu` runs: enough that nothing is left out, and little that is compiled twice.

A case is a variant and a problem with an epilogue. Together the cases cover

- of our variants every edge shape and every layer of `LAYERS` in every dtype and layout that they take, each with one
  of `KINDS`. Which one follows from the storage type, the layout and whether the filter is 1x1, 3x3 or another, so that
  shapes for which the same is compiled mostly end alike;
- of cuDNN's variants, which it builds at run time and which have tests of their own for every shape, every shape and
  layer once, the dtypes and layouts in turns;
- of all variants every kind in every dtype and layout that they take, on the smallest of `SMALL` where none of these
  cases had it;
- of all variants every epilogue of `EACH` that they take once, in the last dtype that they take;
- of our variants every shape whose sides are padded differently, in every dtype and layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final
from unittest.mock import patch

from conv_advisor.data.epilogue import Activation, Epilogue
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.kernels.catalog import VARIANTS as CATALOGUE
from conv_advisor.kernels.cuda import compile as compiling
from conv_advisor.kernels.cuda.family import CudaVariant
from conv_advisor.kernels.cuda.parts.source import STORAGE_OF, STORAGES, Source
from conv_advisor.kernels.cuda.prepare import prepare_unasked
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Variant
from tests.shapes import EDGE_SHAPES, UNEVEN_SHAPES, edge_problem, uneven_problem

Case = tuple[Variant, ConvProblem]
Compilation = tuple[Source, str, tuple[tuple[str, int], ...]]
"""A source, its storage type, and what is defined."""

ANY_GPU: Final = Device(id="gpu", name="GPU", kind="cuda", capability="9.0", processors=132)
VARIANTS: Final = [each for each in CATALOGUE.values() if each.backend.device_kind == "cuda" and each.ending]
KINDS: Final = (
    Epilogue(bias=True, activation=Activation.RELU),
    Epilogue(residual=True),
    Epilogue(bias=True, residual=True, activation=Activation.GELU),
)
"""Each of the three parts alone and together."""
EACH: Final = (
    *(Epilogue(bias=True, residual=True, activation=activation) for activation in Activation),
    *(Epilogue(bias=True), Epilogue(residual=True), Epilogue(activation=Activation.RELU)),
)
"""Every activation, and every way to leave something out."""
LAYERS: Final = ("56-8-1-256-64", "28-32-3-128-128", "7-64-1-2048-512", "14-1-3-256-256")
SMALL: Final = ("pointwise_aligned", "same_3x3_aligned", "same_5x5_aligned", "groups_48", "depthwise")
"""Edge shapes of which every variant takes one, or none that it takes is aligned."""
COLUMNS: Final = tuple(product(DType, Layout))


def kind_of(problem: ConvProblem) -> Epilogue:
    """The kind that a case of ours ends with."""
    filters = {(1, 1): 0, (3, 3): 1}.get((problem.r, problem.s), 2)
    return KINDS[(filters + STORAGES.index(STORAGE_OF[problem.dtype]) + list(Layout).index(problem.layout)) % 3]


def shapes(dtype: DType, layout: Layout) -> list[ConvProblem]:
    """Every edge shape and layer, in one dtype and layout."""
    layers = (ConvProblem.parse(layer, dtype=dtype, layout=layout) for layer in LAYERS)
    return [*(edge_problem(name, dtype, layout) for name in EDGE_SHAPES), *layers]


def cases() -> list[Case]:
    """All of them, each once; those of one problem follow each other."""
    every = list(dict.fromkeys([*_of_shapes(), *_of_epilogues(), *_of_uneven_padding()]))
    have = {(variant.id, problem.dtype, problem.layout, problem.epilogue) for variant, problem in every}
    every += [
        (variant, replace(taken, epilogue=kind))
        for variant in VARIANTS
        for dtype, layout in COLUMNS
        if (taken := _first_taken(variant, [(dtype, layout)]))
        for kind in KINDS
        if (variant.id, dtype, layout, kind) not in have
    ]
    by_problem: dict[str, list[Case]] = {}
    for case in every:
        by_problem.setdefault(case[1].key, []).append(case)
    return [case for of_problem in by_problem.values() for case in of_problem]


def _of_shapes() -> Iterator[Case]:
    for column, (dtype, layout) in enumerate(COLUMNS):
        for place, problem in enumerate(shapes(dtype, layout)):
            ended = replace(problem, epilogue=kind_of(problem))
            for variant in VARIANTS:
                is_wanted = isinstance(variant, CudaVariant) or place % len(COLUMNS) == column
                if is_wanted and not variant.why_not(problem, ANY_GPU):
                    yield variant, ended


def _of_epilogues() -> Iterator[Case]:
    for variant in VARIANTS:
        taken = _first_taken(variant, COLUMNS[::-1])
        if taken:
            ended = (replace(taken, epilogue=epilogue) for epilogue in EACH)
            yield from ((variant, problem) for problem in ended if not variant.why_not(problem, ANY_GPU))


def _of_uneven_padding() -> Iterator[Case]:
    for (dtype, layout), name in product(COLUMNS, UNEVEN_SHAPES):
        problem = uneven_problem(name, dtype, layout)
        ended = replace(problem, epilogue=kind_of(problem))
        for variant in VARIANTS:
            if isinstance(variant, CudaVariant) and not variant.why_not(ended, ANY_GPU):
                yield variant, ended


def _first_taken(variant: Variant, columns: Iterable[tuple[DType, Layout]]) -> ConvProblem | None:
    """The first of the small shapes that a variant takes, in the first of these dtypes and layouts; else of all."""
    names = (*SMALL, *(name for name in EDGE_SHAPES if name not in SMALL))
    problems = (edge_problem(name, *column) for column in columns for name in names)
    return next((problem for problem in problems if not variant.why_not(problem, ANY_GPU)), None)


CASES: Final = cases()


def compilations(device: Device, cases: Iterable[Case]) -> dict[Compilation, str]:
    """What kernels of ours are compiled with for these cases, and the name of a kernel in each; nothing is compiled."""
    found: dict[Compilation, str] = {}
    for variant, problem in cases:
        if not isinstance(variant, CudaVariant) or variant.why_not(problem, device):
            continue
        with patch.object(compiling, "_load_module", lambda *each: _Module(each, found)):
            try:
                prepare_unasked(variant, problem, device, DEFAULT_WORKSPACE_LIMIT_BYTES)
            except Exception:  # noqa: S112 - its case will say so; what is not found here is compiled there
                continue
    return found


class _Module:
    """Stands for one that is not compiled, and keeps what is asked of it."""

    def __init__(self, compilation: Compilation, found: dict[Compilation, str]) -> None:
        self._compilation, self._found = compilation, found

    def get_function(self, name: str) -> Any:
        self._found.setdefault(self._compilation, name)
        return _Kernel()

    def get_global(self, _name: str) -> Any:
        return _Kernel()


class _Kernel:
    """Stands for a kernel, which nobody launches."""

    ptr = 0
    max_dynamic_shared_size_bytes = 0

    @property
    def kernel(self) -> _Kernel:
        return self
