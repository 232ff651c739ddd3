"""What may be set about the backend, told apart from what is Inductor's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from conv_advisor.data.errors import InvalidInput
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

MAX_ERROR_RATIO: Final = 8.0
"""On the 7,658 float32 problems of an H200 where the error of what cuDNN's heuristic A chooses is known, the fastest
variant within 8 times of it is 1.4 % behind the fastest of all in NCHW and 0.2 % in NHWC; within 4 times 8.8 % and
1.5 %, within 2 times 19 % and 3 % (`benchmarks.accuracy`). In other precisions no such bound costs anything."""


@dataclass(frozen=True)
class Options:
    """How convolutions are chosen.

    Parameters
    ----------
    measure : int
        Variants of the ranking, from the first on, that are timed on this GPU beside PyTorch's own convolution; 0
        takes the first of the ranking without timing anything. Those that may refuse what follows a convolution, and
        what the ranking does not know yet, come beside them.
    fold : bool
        Whether batch norms, scales and shifts behind a convolution go into its weight and bias, zeros around its input
        into its padding, and weights that are computed from parameters are computed once.
    watch : bool
        Whether each call looks whether what was folded or computed ahead changed; else `refresh` tells.
    fuse : bool
        Whether variants may compute what follows a convolution too; else that is left to Inductor.
    layouts : bool
        Whether convolutions may run in another layout than the model has; weights are then laid out for it once.
    overlap : bool
        Whether our kernels begin while the one ahead of them still runs, on devices that can (from Hopper on).
    graphs : bool
        Whether calls will be replayed as CUDA graphs, in which a variant costs the host nothing; modes of
        ``torch.compile`` that replay them say so too.
    inductor : bool
        Whether Inductor compiles what is left; else PyTorch runs it operator by operator, and nothing is compiled.
    max_workspace_bytes : int
        Scratch memory that a variant may need.
    deterministic : bool
        Whether only variants will do that give bitwise equal outputs for equal inputs; PyTorch's
        ``use_deterministic_algorithms`` asks for the same.
    only_cudnn : bool
        Whether only cuDNN's variants will do.
    max_error_ratio : float
        How many times as far from float64 as PyTorch's own convolution a variant may be, on random operands; whatever
        this says, it keeps `kernels.tolerance.tolerance`.
    plan_file : str or Path, optional
        Where choices are kept; by default a file of this device in the user's cache folder.
    """

    measure: int = 3
    fold: bool = True
    watch: bool = True
    fuse: bool = True
    layouts: bool = True
    overlap: bool = True
    graphs: bool = False
    inductor: bool = True
    max_workspace_bytes: int = DEFAULT_WORKSPACE_LIMIT_BYTES
    deterministic: bool = False
    only_cudnn: bool = False
    max_error_ratio: float = MAX_ERROR_RATIO
    plan_file: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("measure", "max_workspace_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise InvalidInput(f"options.{name}", value, "an integer from 0 on")
        for name in (
            "fold",
            "watch",
            "fuse",
            "layouts",
            "overlap",
            "graphs",
            "inductor",
            "deterministic",
            "only_cudnn",
        ):
            if type(getattr(self, name)) is not bool:
                raise InvalidInput(f"options.{name}", getattr(self, name), "True or False")
        ratio = self.max_error_ratio
        if type(ratio) not in (int, float) or not ratio >= 1:
            raise InvalidInput("options.max_error_ratio", ratio, "a number from 1 on; inf for no bound")
        if self.plan_file is not None and not isinstance(self.plan_file, str | Path):
            raise InvalidInput("options.plan_file", self.plan_file, "a path")

    @property
    def limits(self) -> str:
        """What narrows the choice, or changes what runs it, as part of a plan's name; empty where nothing does."""
        parts = (
            *("deterministic" if self.deterministic else "", "cudnn" if self.only_cudnn else ""),
            *("" if self.overlap else "apart", "graphs" if self.graphs else ""),
        )
        bytes_ = self.max_workspace_bytes
        most = f"workspace{bytes_}" if bytes_ != DEFAULT_WORKSPACE_LIMIT_BYTES else ""
        error = f"error{self.max_error_ratio:g}" if self.max_error_ratio != MAX_ERROR_RATIO else ""
        return "-".join(filter(None, (*parts, most, error)))


_OURS: Final = tuple(field.name for field in fields(Options))


def read_options(mode: str | None, options: Mapping[str, Any] | None) -> tuple[Options, dict[str, Any]]:
    """Our options, and what Inductor is to be configured with.

    Parameters
    ----------
    mode : str or None
        One of ``torch.compile``'s modes.
    options : mapping of str to value, or None
        Ours by their names in `Options`; the others are Inductor's.

    Raises
    ------
    InvalidInput
        A mode or an option that neither knows, or a value that is not allowed.
    """
    from torch._inductor import list_mode_options, list_options  # it takes a second to import

    modes = list_mode_options()
    if mode not in (None, "default", *modes):
        raise InvalidInput("mode", mode, ", ".join(sorted({"default", *modes})))
    ours: dict[str, Any] = {}
    inductors = dict(modes.get(mode, {}))
    for name, value in (options or {}).items():
        plain = name.replace("-", "_")
        if plain in _OURS:
            ours[plain] = value
        elif plain in list_options():
            inductors[plain] = value
        else:
            raise InvalidInput("options", name, f"{', '.join(_OURS)}, or an option of Inductor")
    if inductors and ours.get("inductor") is False:
        raise InvalidInput("options.inductor", False, f"True beside {', '.join(inductors)}, which is Inductor's")
    if inductors.get("triton.cudagraphs"):
        ours.setdefault("graphs", True)
    if torch.are_deterministic_algorithms_enabled():
        ours["deterministic"] = True
    return Options(**ours), inductors
