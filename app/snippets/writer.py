"""Writes a program that runs exactly one variant on one layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from conv_advisor.app.snippets.endings import C_ACTIVATIONS, nodes
from conv_advisor.app.snippets.language import Language
from conv_advisor.data.epilogue import PLAIN, Activation, Epilogue
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import FIELDS, ConvProblem, DType, Layout
from conv_advisor.data.version import version
from conv_advisor.kernels.cudnn.plans import BARRED_NOTES, KNOB_TYPES, MOST_BUILDS, PlanRef, packed_strides
from conv_advisor.kernels.cudnn.variants import LEGACY_ALGORITHMS, algorithm_of, engine_of
from conv_advisor.kernels.variant import Backend, Ending, Variant

_TEMPLATES: Final = Path(__file__).parent / "templates"
_KNOB_NAMES: Final = {number: name for name, number in KNOB_TYPES.items()}
_STORED: Final = {DType.FLOAT16: "float16", DType.BFLOAT16: "bfloat16"}
_GRAPH_TYPES: Final = {DType.FLOAT16: "HALF", DType.BFLOAT16: "BFLOAT16"}
_LEGACY_TYPES: Final = {DType.FLOAT16: "CUDNN_DATA_HALF", DType.BFLOAT16: "CUDNN_DATA_BFLOAT16"}

RULE: Final = (
    "the first plan that cuDNN's heuristics A, B and FALLBACK, in this order, offer for this engine and that builds "
    f"within the workspace, of at most {MOST_BUILDS} that are tried"
)
"""The rule for the knobs of an engine that was not measured on the layer, as in `kernels.cudnn.graph.prepare`."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """A program, and what it needs to run.

    Parameters
    ----------
    variant : str
    language : Language
    languages : tuple of Language
        Languages that this variant has programs in.
    code : str
    requires : tuple of str
        Packages or libraries that it needs.
    plan : dict
        The plan it rebuilds: algorithm and math type for the legacy API; engine and measured knobs for the graph API;
        id and version of this project for our own variants.
    rule : str or None
        The rule for the rest of the plan where nothing was measured.
    """

    variant: str
    language: Language
    languages: tuple[Language, ...]
    code: str
    requires: tuple[str, ...]
    plan: dict[str, Any]
    rule: str | None


def languages_of(variant: Variant) -> tuple[Language, ...]:
    """Languages that a program for this variant can be written in, the plainest first."""
    if variant.backend is Backend.CPU:
        return (Language.PYTHON,)
    if variant.backend is Backend.CUDNN_LEGACY:
        return (Language.C, Language.PYTHON, Language.TORCH)
    return (Language.PYTHON, Language.TORCH)


def write_snippet(
    problem: ConvProblem,
    variant: Variant,
    *,
    plan: Mapping[str, Any] | None = None,
    workspace_limit_bytes: int,
    language: Language | None = None,
    left_out: Epilogue = PLAIN,
) -> Snippet:
    """A program that prepares the variant for the layer and runs it once on random operands.

    Parameters
    ----------
    problem : ConvProblem
    variant : Variant
    plan : dict, optional
        As stored with a measurement; without it, a graph engine's knobs come from `RULE`.
    workspace_limit_bytes : int
        Largest workspace of the plan.
    language : Language, optional
        By default the first of `languages_of`.
    left_out : Epilogue
        The part of the requested epilogue that the variant does not compute: the program says so.

    Raises
    ------
    InvalidInput
        The variant has no program in this language.
    """
    languages = languages_of(variant)
    chosen = language or languages[0]
    if chosen not in languages:
        raise InvalidInput("language", str(chosen), f"{', '.join(languages)} for {variant.id}")
    ref = PlanRef.from_json(plan) if plan and variant.backend is Backend.CUDNN_GRAPH else None
    kind = "c" if chosen is Language.C else "graph" if variant.backend is Backend.CUDNN_GRAPH else "own"
    values = _common(problem, variant, workspace_limit_bytes)
    values |= {"is_torch": chosen is Language.TORCH, "left_out": str(left_out)}
    values |= _MORE[kind](problem, variant, ref)
    code = _environment().get_template(_FILES[kind]).render(values)
    is_by_rule = variant.backend is Backend.CUDNN_GRAPH and ref is None
    return Snippet(
        variant=variant.id,
        language=chosen,
        languages=languages,
        code=code,
        requires=_requires(kind, problem, variant, chosen),
        plan=_plan(problem, variant, ref),
        rule=RULE if is_by_rule else None,
    )


def _common(problem: ConvProblem, variant: Variant, workspace_limit_bytes: int) -> dict[str, Any]:
    fields = {name: getattr(problem, name) for name in FIELDS}
    ends = {name: getattr(problem, name) for name in ("pad_h_end", "pad_w_end")}
    printed = fields | (ends if problem.has_uneven_padding else {})
    return (
        fields
        | ends
        | {
            "p": problem.p,
            "q": problem.q,
            "short": problem.short,
            "problem": problem,
            "fields": {name: value if isinstance(value, int) else str(value) for name, value in printed.items()},
            "epilogue": str(problem.epilogue),
            "added": [name for name in ("bias", "residual") if name in problem.shapes],
            "is_nhwc": problem.layout is Layout.NHWC,
            "stored": _STORED.get(problem.dtype, "float32"),
            "variant": variant.id,
            "is_cpu": variant.backend is Backend.CPU,
            "limit_bytes": workspace_limit_bytes,
            "version": version(),
        }
    )


def _own(_problem: ConvProblem, _variant: Variant, _ref: PlanRef | None) -> dict[str, Any]:
    return {}


def _graph(problem: ConvProblem, variant: Variant, ref: PlanRef | None) -> dict[str, Any]:
    knobs = [(_KNOB_NAMES.get(knob), value) for knob, value in ref.knobs] if ref else []
    channels = problem.c // problem.groups
    return {
        "engine": engine_of(variant.id),
        "kind": _GRAPH_TYPES.get(problem.dtype, "FLOAT"),
        "knobs": {f"k{knob}": str(value) for knob, value in ref.knobs} if ref else None,
        "named_knobs": dict(knobs) if ref and all(name for name, _ in knobs) else None,
        "barred": [*BARRED_NOTES, *(["TENSOR_CORE"] if problem.dtype is DType.FLOAT32 else [])],
        "most_builds": MOST_BUILDS,
        "nodes": nodes(problem.epilogue),
        "strides": {
            "x": packed_strides(problem.layout, (problem.n, problem.c, problem.h, problem.w)),
            "bias": packed_strides(problem.layout, (1, problem.k, 1, 1)),
            "weight": packed_strides(problem.layout, (problem.k, channels, problem.r, problem.s)),
            "y": packed_strides(problem.layout, (problem.n, problem.k, problem.p, problem.q)),
        },
    }


def _legacy(problem: ConvProblem, variant: Variant, _ref: PlanRef | None) -> dict[str, Any]:
    algorithm, math_type = _legacy_plan(problem, variant)
    is_appended = _is_appended(problem, variant)
    activation = problem.epilogue.activation
    return {
        "is_fused": bool(problem.epilogue) and not is_appended,
        "finish": C_ACTIVATIONS[activation] if is_appended else "",
        "c_activation": f"CUDNN_ACTIVATION_{'IDENTITY' if activation is Activation.NONE else activation.upper()}",
        "algorithm": algorithm,
        "math_type": math_type,
        "c_type": _LEGACY_TYPES.get(problem.dtype, "CUDNN_DATA_FLOAT"),
        "format": "CUDNN_TENSOR_NHWC" if problem.layout is Layout.NHWC else "CUDNN_TENSOR_NCHW",
        "itemsize": problem.dtype.itemsize_bytes,
    }


def _legacy_plan(problem: ConvProblem, variant: Variant) -> tuple[str, str]:
    """Algorithm and math type by their names in cuDNN's header."""
    algorithm, is_tensor_core = algorithm_of(variant.id)
    math_type = "CUDNN_FMA_MATH"
    if is_tensor_core:
        math_type = "CUDNN_DEFAULT_MATH" if problem.dtype is DType.TF32 else "CUDNN_TENSOR_OP_MATH"
    return f"CUDNN_CONVOLUTION_FWD_ALGO_{LEGACY_ALGORITHMS[algorithm].upper()}", math_type


def _is_appended(problem: ConvProblem, variant: Variant) -> bool:
    """Whether a program in C adds its own kernel after the library's call."""
    return bool(problem.epilogue) and variant.ending_of(problem.epilogue) is not Ending.LIBRARY


def _plan(problem: ConvProblem, variant: Variant, ref: PlanRef | None) -> dict[str, Any]:
    if variant.backend is Backend.CUDNN_LEGACY:
        algorithm, math_type = _legacy_plan(problem, variant)
        return {"algorithm": algorithm, "math_type": math_type}
    if variant.backend is Backend.CUDNN_GRAPH:
        knobs = {str(knob): value for knob, value in ref.knobs} if ref else None
        return {"engine": engine_of(variant.id), "knobs": knobs}
    return {"id": variant.id, "version": version()}


def _requires(kind: str, problem: ConvProblem, variant: Variant, language: Language) -> tuple[str, ...]:
    if kind == "c":
        return ("libcudnn 9", "nvcc" if _is_appended(problem, variant) else "libcudart")
    arrays = ("torch",) if language is Language.TORCH else ()
    if kind == "graph":
        return ("nvidia-cudnn-frontend", "cuDNN 9", *(arrays or ("cupy",)))
    extra = "conv-advisor" if variant.backend is Backend.CPU else "conv-advisor[cuda]"
    return (extra, *arrays)


_FILES: Final = {"c": "legacy.c.jinja", "graph": "graph.py.jinja", "own": "own.py.jinja"}
_MORE: Final = {"c": _legacy, "graph": _graph, "own": _own}


@cache
def _environment() -> Environment:
    # Code, not HTML; every value in it is a number or a name from a closed list.
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=False,  # noqa: S701 - no HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
    )
