"""The engines of cuDNN's graph API, through nvidia-cudnn-frontend."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any, Final

from conv_advisor.data.errors import LaunchFailed, NotSupported, RunError, WorkspaceExceeded
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.addresses import current_stream
from conv_advisor.kernels.cudnn import library
from conv_advisor.kernels.cudnn.epilogue import ended
from conv_advisor.kernels.cudnn.plans import (
    BARRED_NOTES,
    KNOB_TYPES,
    MOST_BUILDS,
    PlanRef,
    group_by_engine,
    packed_strides,
    parse_plan_name,
)
from conv_advisor.kernels.cudnn.variants import engine_of, graph_engine_variant
from conv_advisor.kernels.scratch import Scratch
from conv_advisor.kernels.variant import Launch, Variant

MOST_DETAIL: Final = 300
"""Characters kept of a message of the frontend, since a message can quote half of the frontend's source."""

_HEURISTICS: Final = ("a", "b", "fallback")
_X, _WEIGHT, _Y, _BIAS, _RESIDUAL = 1, 2, 3, 4, 5


@dataclass(frozen=True)
class _Offers:
    """The graphs of one problem, one per heuristic, and the plans that they offer."""

    graphs: dict[str, Any]
    engines: dict[int, list[PlanRef]]


def engines(problem: ConvProblem) -> dict[int, list[PlanRef]]:
    """The engines that heuristics A, B and FALLBACK offer, in order of appearance, with their plans.

    Raises
    ------
    NotSupported
        The graph API has no form for the problem, or is not installed.
    """
    return _offers(problem).engines


def prepare(variant: Variant, problem: ConvProblem, workspace_limit_bytes: int) -> Launch:
    """Build the first plan of an engine that builds and fits the workspace.

    Parameters
    ----------
    variant : Variant
        The variant of one engine.
    problem : ConvProblem
    workspace_limit_bytes : int

    Returns
    -------
    launch : Launch
        Its plan holds engine, knobs, heuristic and index; its operands must be aligned to 16 bytes.

    Raises
    ------
    NotSupported
        No heuristic offers the engine, or none of its first plans builds.
    WorkspaceExceeded
        The plans that build need more than the limit.
    """
    offers = _offers(problem)
    refs = offers.engines.get(engine_of(variant.id))
    if refs is None:
        raise NotSupported("not offered by heuristics A, B or FALLBACK")
    refusals: list[RunError] = []
    for ref in refs[:MOST_BUILDS]:
        try:
            return _launch(offers.graphs[ref.heuristic], ref, workspace_limit_bytes)
        except (NotSupported, WorkspaceExceeded) as error:
            refusals.append(error)
    raise next((error for error in refusals if isinstance(error, WorkspaceExceeded)), refusals[0])


def prepare_plan(problem: ConvProblem, plan: Mapping[str, Any], workspace_limit_bytes: int) -> Launch:
    """Rebuild a plan from its stored form.

    Parameters
    ----------
    problem : ConvProblem
    plan : dict
        As in `Launch.plan`: engine and knobs identify the plan.
    workspace_limit_bytes : int

    Raises
    ------
    NotSupported
        This version of cuDNN does not build it.
    WorkspaceExceeded

    Notes
    -----
    A plan is made from its engine and knobs where the frontend has a name for each of its knob types. The frontend has
    none for types that the header calls deprecated and that engines still use; a plan with such knobs is looked up
    among those that the heuristics offer.
    """
    ref = PlanRef.from_json(plan)
    graph = _graph_of_plan(problem, ref)
    if graph is not None:
        return _launch(graph, PlanRef(ref.engine, ref.knobs), workspace_limit_bytes)
    offered = _offered(problem, ref)
    if offered is None:
        raise NotSupported(f"plan {ref.name} is no longer offered, and has knobs that cannot be set by name")
    return _launch(*offered, workspace_limit_bytes)


def prepare_offered(problem: ConvProblem, plan: Mapping[str, Any], workspace_limit_bytes: int) -> Launch:
    """Build a plan that the heuristics offer, queried once per problem; other plans as `prepare_plan` does."""
    offered = _offered(problem, PlanRef.from_json(plan))
    if offered is None:
        return prepare_plan(problem, plan, workspace_limit_bytes)
    return _launch(*offered, workspace_limit_bytes)


def heuristic_pick(
    problem: ConvProblem, heuristic: str, workspace_limit_bytes: int
) -> tuple[str, dict[str, Any]] | None:
    """Variant id and plan of the first plan of a heuristic, ``a`` or ``b``, that builds and fits; None without one."""
    try:
        offers = _offers(problem)
    except NotSupported:
        return None
    graph = offers.graphs.get(heuristic)
    if graph is None:
        return None
    for index, name in enumerate(_names(graph)):
        ref = parse_plan_name(name, heuristic, index)
        if ref is None:
            continue
        try:
            _build(graph, ref, workspace_limit_bytes)
        except (NotSupported, WorkspaceExceeded):
            continue
        return graph_engine_variant(ref.engine).id, ref.to_json()
    return None


# One problem is enough: a sweep prepares all engines of a problem before the next, and each graph holds its plans.
@lru_cache(maxsize=1)
def _offers(problem: ConvProblem) -> _Offers:
    graphs = {}
    for heuristic in _HEURISTICS:
        graph = _new_graph(problem)
        mode = getattr(_frontend().heur_mode, heuristic.upper())
        try:
            _plan(graph, problem, partial(graph.create_execution_plans, [mode]))
        except NotSupported:
            continue
        graphs[heuristic] = graph
    return _Offers(graphs, group_by_engine({heuristic: _names(graph) for heuristic, graph in graphs.items()}))


def _offered(problem: ConvProblem, ref: PlanRef) -> tuple[Any, PlanRef] | None:
    """The graph on which a heuristic offers this plan, and the plan as offered there; None where none offers it."""
    offers = _offers(problem)
    matching = (offered for offered in offers.engines.get(ref.engine, []) if offered.is_same_plan(ref))
    return next(((offers.graphs[offered.heuristic], offered) for offered in matching), None)


def _graph_of_plan(problem: ConvProblem, ref: PlanRef) -> Any | None:
    """A graph whose only plan is this one; None where the frontend cannot express its knobs."""
    knobs = {_knob_types().get(knob): value for knob, value in ref.knobs}
    if None in knobs:
        return None
    graph = _new_graph(problem)
    _plan(graph, problem, partial(graph.create_execution_plan, ref.engine, knobs))
    return graph


def _plan(graph: Any, problem: ConvProblem, create: Callable[[], None]) -> None:
    """Create plans, and bar plans that round more than the dtype allows or accumulate in less than float32."""
    notes = _frontend().numerical_note
    barred = [getattr(notes, name) for name in BARRED_NOTES]
    if problem.dtype is DType.FLOAT32:
        barred.append(notes.TENSOR_CORE)
    with _refusals():
        create()
        # This bars only plans that exist already.
        graph.deselect_numeric_notes(barred)


def _new_graph(problem: ConvProblem) -> Any:
    frontend = _frontend()
    kind = _data_type(problem.dtype)
    with _refusals():
        graph = frontend.pygraph(
            io_data_type=kind,
            intermediate_data_type=frontend.data_type.FLOAT,
            compute_data_type=frontend.data_type.FLOAT,
            handle=library.handle(),
        )
        x = _tensor(graph, problem, _X, (problem.n, problem.c, problem.h, problem.w))
        weight = _tensor(graph, problem, _WEIGHT, (problem.k, problem.c // problem.groups, problem.r, problem.s))
        sums = graph.conv_fprop(
            image=x,
            weight=weight,
            pre_padding=[problem.pad_h, problem.pad_w],
            post_padding=[problem.pad_h_end, problem.pad_w_end],
            stride=[problem.stride_h, problem.stride_w],
            dilation=[problem.dilation_h, problem.dilation_w],
        )
        sizes = (problem.n, problem.k, problem.p, problem.q)
        epilogue = problem.epilogue
        bias = _tensor(graph, problem, _BIAS, (1, problem.k, 1, 1)) if epilogue.bias else None
        residual = _tensor(graph, problem, _RESIDUAL, sizes) if epilogue.residual else None
        y = ended(graph, epilogue, sums, bias, residual)
        y.set_output(True).set_data_type(kind).set_uid(_Y)
        y.set_dim(list(sizes)).set_stride(packed_strides(problem.layout, sizes))
        graph.validate()
        graph.build_operation_graph()
    return graph


def _tensor(graph: Any, problem: ConvProblem, uid: int, sizes: tuple[int, int, int, int]) -> Any:
    strides = packed_strides(problem.layout, sizes)
    return graph.tensor(dim=list(sizes), stride=strides, data_type=_data_type(problem.dtype), uid=uid)


def _names(graph: Any) -> list[str]:
    with _refusals():
        return [graph.get_plan_name_at_index(index) for index in range(graph.get_execution_plan_count())]


def _build(graph: Any, ref: PlanRef, workspace_limit_bytes: int) -> int:
    """Build a plan and return its workspace in bytes."""
    with _refusals():
        graph.build_plan_at_index(ref.index)
        needed_bytes = int(graph.get_workspace_size_plan_at_index(ref.index))
    if needed_bytes > workspace_limit_bytes:
        raise WorkspaceExceeded(needed_bytes, workspace_limit_bytes)
    return needed_bytes


def _launch(graph: Any, ref: PlanRef, workspace_limit_bytes: int) -> Launch:
    needed_bytes = _build(graph, ref, workspace_limit_bytes)
    workspace = Scratch(needed_bytes)

    def run(x: Any, weight: Any, y: Any, bias: Any = None, residual: Any = None) -> None:
        tensors = {_X: x, _WEIGHT: weight, _Y: y, _BIAS: bias, _RESIDUAL: residual}
        pointers = {uid: tensor.data.ptr for uid, tensor in tensors.items() if tensor is not None}
        try:
            graph.execute_plan_at_index(pointers, workspace.ptr, ref.index, handle=library.handle_on(current_stream()))
        except _frontend_errors() as error:
            raise LaunchFailed(_short(error)) from error

    return Launch(run, needed_bytes, ref.to_json(), (workspace,), by_address=True)


@contextmanager
def _refusals() -> Iterator[None]:
    """Raise the frontend's errors as NotSupported: before a launch, they mean that it refuses the problem or plan."""
    try:
        yield
    except _frontend_errors() as error:
        raise NotSupported(_short(error)) from error


def _frontend_errors() -> tuple[type[Exception], ...]:
    """The frontend's own error, and pybind11's translations of std::runtime_error and std::invalid_argument."""
    return (_frontend().cudnnGraphNotSupportedError, RuntimeError, ValueError)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:MOST_DETAIL]


def _data_type(dtype: DType) -> Any:
    types = _frontend().data_type
    return {DType.FLOAT16: types.HALF, DType.BFLOAT16: types.BFLOAT16}.get(dtype, types.FLOAT)


@cache
def _frontend() -> Any:
    """The frontend; libcudnn is loaded first, since the frontend looks it up by name and else ends the process."""
    library.load()
    try:
        return importlib.import_module("cudnn")
    except ImportError as error:
        raise NotSupported(f"nvidia-cudnn-frontend cannot be imported: {error}") from error
    except Exception as error:  # what broke while it was imported, PyTorch for one, stays half imported in this process
        raise LaunchFailed(f"nvidia-cudnn-frontend broke while it was imported: {_short(error)}") from error


@cache
def _knob_types() -> dict[int, Any]:
    """The frontend's name for each knob type of cudnnBackendKnobType_t that it can set."""
    names = _frontend().knob_type.__members__
    return {number: names[name] for name, number in KNOB_TYPES.items() if name in names}
