"""Execution plans of the graph API by name: an engine, its knobs, and where a heuristic offered them; pure Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from conv_advisor.data.problem import Layout

_NAME: Final = re.compile(r"eng(?P<engine>\d+)(?P<knobs>(?:_k\d+=-?\d+)*)")
_KNOB: Final = re.compile(r"_k(\d+)=(-?\d+)")

MOST_BUILDS: Final = 4
"""At most this many plans of one engine are tried until one builds and fits; a build may compile for half a second."""

BARRED_NOTES: Final = ("DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
"""Numerical notes of plans that round more than the dtype allows or accumulate in less than float32."""

KNOB_TYPES: Final = {
    "SWIZZLE": 1,
    "TILE_SIZE": 2,
    "EDGE": 4,
    "MULTIPLY": 11,
    "SPLIT_K_BUF": 12,
    "TILEK": 13,
    "STAGES": 14,
    "REDUCTION_MODE": 15,
    "SPLIT_K_SLC": 17,
    "IDX_MODE": 18,
    "SPECFILT": 23,
    "KERNEL_CFG": 24,
    "WORKSPACE": 25,
    "TILE_CGA_M": 27,
    "TILE_CGA_N": 28,
    "BLOCK_SIZE": 29,
    "OCCUPANCY": 30,
    "ARRAY_SIZE_PER_THREAD": 31,
    "SPLIT_COLS": 33,
    "TILE_ROWS": 34,
    "TILE_COLS": 35,
    "LOAD_SIZE": 36,
    "CTA_COUNT": 37,
    "STREAM_K": 38,
    "SPLIT_P_SLC": 39,
    "TILE_M": 40,
    "TILE_N": 41,
    "WARP_SPEC_CFG": 42,
    "SWAP_AB": 43,
}
"""Knob types of cudnnBackendKnobType_t that cuDNN 9.19 does not call deprecated, with their numbers in plan names."""


@dataclass(frozen=True)
class PlanRef:
    """One execution plan.

    Parameters
    ----------
    engine : int
    knobs : tuple of (int, int)
        Knob types of cudnnBackendKnobType_t and their values, in the order of the plan's name.
    heuristic : str
        The heuristic that offered it: ``a``, ``b`` or ``fallback``; empty where it was rebuilt from its knobs.
    index : int
        Its place among the plans of that heuristic.
    """

    engine: int
    knobs: tuple[tuple[int, int], ...]
    heuristic: str = ""
    index: int = 0

    @property
    def name(self) -> str:
        """The name that cuDNN's frontend gives the plan."""
        return f"eng{self.engine}" + "".join(f"_k{knob}={value}" for knob, value in self.knobs)

    def to_json(self) -> dict[str, Any]:
        """The plan as `Measurement.plan` stores it."""
        return {
            "engine": self.engine,
            "knobs": {str(knob): value for knob, value in self.knobs},
            "heuristic": self.heuristic,
            "index": self.index,
        }

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> PlanRef:
        """Read what `to_json` wrote."""
        knobs = tuple((int(knob), int(value)) for knob, value in plan["knobs"].items())
        return cls(int(plan["engine"]), knobs, plan.get("heuristic", ""), plan.get("index", 0))

    def is_same_plan(self, other: PlanRef) -> bool:
        """Whether engine and knobs agree, whatever the heuristic and the order of the knobs."""
        return self.engine == other.engine and dict(self.knobs) == dict(other.knobs)


def parse_plan_name(name: str, heuristic: str = "", index: int = 0) -> PlanRef | None:
    """Read a plan's name, such as ``eng62_k2=0_k13=1``; None where it names no engine.

    The frontend gives ``INVALID_ENGINE_NAME...`` to a plan that it cannot describe.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    knobs = tuple((int(knob), int(value)) for knob, value in _KNOB.findall(match["knobs"]))
    return PlanRef(int(match["engine"]), knobs, heuristic, index)


def group_by_engine(names: Mapping[str, Sequence[str]]) -> dict[int, list[PlanRef]]:
    """Group plans by engine, each plan once; engines and plans are in order of appearance.

    Parameters
    ----------
    names : mapping of str to sequence of str
        The plan names of each heuristic, heuristics in order of precedence.
    """
    engines: dict[int, list[PlanRef]] = {}
    seen: set[str] = set()
    for heuristic, plan_names in names.items():
        for index, name in enumerate(plan_names):
            ref = parse_plan_name(name, heuristic, index)
            if ref is not None and name not in seen:
                seen.add(name)
                engines.setdefault(ref.engine, []).append(ref)
    return engines


def packed_strides(layout: Layout, sizes: tuple[int, int, int, int]) -> list[int]:
    """Strides of a packed tensor; its sizes are in the order n, c, h, w whatever the layout."""
    _, channels, rows, columns = sizes
    if layout is Layout.NCHW:
        return [channels * rows * columns, rows * columns, columns, 1]
    return [channels * rows * columns, 1, columns * channels, channels]
