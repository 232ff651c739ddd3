"""What is chosen for a convolution, and the interface of what chooses it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from conv_advisor.data.problem import ConvProblem, Layout
from conv_advisor.torch.options import Options


@dataclass(frozen=True)
class Choice:
    """What runs one problem on one device.

    Parameters
    ----------
    variant : str or None
        Its id; None for PyTorch's own convolution.
    plan : dict
        What rebuilds it, with the id, as in `Measurement.plan`.
    time_ms : float or None
        None where it is unknown, as where no variant could be compared with PyTorch's own.
    torch_ms : float or None
        Of PyTorch's own convolution and one elementwise kernel for the epilogue, if the problem has one.
    max_error, torch_error : float or None
        max |y - y64| / max |y64| of both, on random operands.
    reason : str
        Why it is PyTorch's own, where it is.
    is_measured : bool
        Whether the times were measured on this device; else they are predicted.
    """

    variant: str | None
    plan: dict[str, Any] = field(default_factory=dict)
    time_ms: float | None = None
    torch_ms: float | None = None
    max_error: float | None = None
    torch_error: float | None = None
    reason: str = ""
    is_measured: bool = True

    @property
    def is_settled(self) -> bool:
        """Whether a variant was chosen, or PyTorch's own was as fast as those that were timed beside it."""
        return self.variant is not None or self.time_ms is not None

    @property
    def gain(self) -> float | None:
        """How many times as fast as PyTorch's own convolution it is; None where that is unknown."""
        return self.torch_ms / self.time_ms if self.time_ms and self.torch_ms else None

    def __str__(self) -> str:
        name = self.variant or f"PyTorch's own ({self.reason})"
        if self.time_ms is None or self.torch_ms is None:
            return name
        basis = "" if self.is_measured else ", as predicted"
        return f"{name}, {self.time_ms * 1000:.2f} µs against {self.torch_ms * 1000:.2f} of PyTorch's own{basis}"


class Chooser(Protocol):
    """Chooses variants for problems, and has them ready to run."""

    def choose(self, layers: Mapping[ConvProblem, str], options: Options) -> Mapping[ConvProblem, Choice]:
        """A choice for every problem; what runs it is then in `conv_advisor.torch.calls.loaded.LOADED`.

        Parameters
        ----------
        layers : mapping of ConvProblem to str
            The problems, with their epilogues, and the layer that each comes from.
        options : Options
        """
        ...

    def kept(self, problem: ConvProblem, options: Options) -> Choice | None:
        """The choice that is kept of a problem, once what runs it is loaded; None where none is, or can be loaded."""
        ...

    def choose_behind_prologues(self, problems: Mapping[ConvProblem, float], options: Options) -> set[ConvProblem]:
        """The problems that a variant computes behind a prologue in less than so many ms, ready by `plan_behind`.

        Parameters
        ----------
        problems : mapping of ConvProblem to float
            Each with the time of what was chosen for it, and of the kernel that the prologue spares.
        options : Options
        """
        ...

    def predicted_ms(self, problem: ConvProblem, options: Options) -> float | None:
        """Time of the first of the ranking, as far as is known without a measurement; None where none applies."""
        ...

    def conversion_ms(self, n_bytes: int, options: Options) -> float:
        """Time to bring a tensor of so many bytes into the other layout."""
        ...

    def kept_layouts(self, network: str, options: Options) -> tuple[Layout, ...] | None:
        """The layouts kept of a network by this name; None where none are, or what they depend on has changed."""
        ...

    def keep_layouts(self, network: str, layouts: Sequence[Layout], options: Options) -> None:
        """Keep the layouts that were chosen for the convolutions of a network, in their order."""
        ...
