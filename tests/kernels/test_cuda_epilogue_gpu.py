"""Every variant of a GPU with what follows a convolution, and with sides padded differently, against float64.

The cases are in `tests.kernels.epilogue_cases`, which says what they cover. Those of one problem follow each other and
share its operands and what cuDNN offers for it; what our kernels of all chosen cases are compiled with is found
first, and all cores compile it before the first case runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import pytest

from conv_advisor.data.errors import CompileFailed, NotSupported, WorkspaceExceeded
from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cpu.threads import available_cores
from conv_advisor.kernels.runner import Operands, Runner
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES, Backend, Variant
from tests.kernels.epilogue_cases import CASES, Case, Compilation, compilations

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def runner(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """The first GPU, for which all that the chosen cases need of our sources is compiled."""
    from conv_advisor.kernels.bench import open_runner

    runner = open_runner("cuda:0")
    mine = [item.callspec.params for item in request.session.items if item.path == request.path]
    compile_all(runner.device, [(each["variant"], each["problem"]) for each in mine])
    yield runner
    operands_of.cache_clear()


def compile_all(device: Device, cases: Iterable[Case]) -> None:
    """Compile and load, on all cores; what fails is told by the case that needs it."""
    import cupy

    from conv_advisor.kernels.cuda.compile import _load_module

    def load(each: tuple[Compilation, str]) -> None:
        try:
            _ = _load_module(*each[0]).get_function(each[1]).kernel
        except (CompileFailed, cupy.cuda.compiler.CompileException):
            return

    todo = list(compilations(device, cases).items())
    for each in todo[:1]:
        load(each)  # what it imports is imported by one thread
    with ThreadPoolExecutor(available_cores(), initializer=cupy.cuda.Device(0).use) as pool:
        list(pool.map(load, todo[1:]))


@lru_cache(maxsize=1)
def operands_of(runner: Runner, problem: ConvProblem) -> Operands:
    """The operands of the problem whose cases are running."""
    return runner.make_operands(problem, 0)


@pytest.mark.parametrize(("variant", "problem"), CASES, ids=lambda value: getattr(value, "key", None) or value.id)
def test_a_variant_ends_right(runner: Runner, variant: Variant, problem: ConvProblem) -> None:
    """From a poisoned y, where this GPU and its library take the problem."""
    if variant.why_not(problem, runner.device):
        return
    try:
        launch = runner.prepare(variant, problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    except (NotSupported, WorkspaceExceeded):
        if variant.backend is Backend.CUDA:  # whose rules say all that it refuses
            raise
        return
    found = runner.first_run(problem, launch, operands_of(runner, problem))
    assert found.max_error <= tolerance(problem), problem.key
