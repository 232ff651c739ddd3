"""A network as a plan needs it: its operators in order, what they hand to each other, and which are convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from conv_advisor.data.problem import ConvProblem


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a network, with what is fused into it.

    Parameters
    ----------
    name : str
        As the model has it.
    kind : str
        What the model's language calls it, such as ``Conv`` or ``MaxPool``.
    reads, writes : tuple of str
        Tensors that other operators made, and those that it makes; weights are not among them.
    problem : ConvProblem or None
        The convolution that it is, in NCHW.
    weight : str
        The convolution's weight: that of several is shared.
    takes_either : bool
        Whether it runs as fast in either layout: what works value by value, pools, joins channels. All others but
        convolutions take and give tensors as the model was written, in NCHW.
    left_out : str
        Why a convolution, or what is like one, has no problem; empty otherwise.
    """

    name: str
    kind: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    problem: ConvProblem | None = None
    weight: str = ""
    takes_either: bool = False
    left_out: str = ""

    @property
    def is_other(self) -> bool:
        """Whether it computes something that is neither a convolution nor like one."""
        return self.problem is None and not self.left_out and bool(self.reads)


@dataclass(frozen=True, slots=True)
class Network:
    """A network for one batch and one dtype.

    Parameters
    ----------
    name : str
    operators : tuple of Operator
        Each after those that make what it reads.
    n_bytes : mapping of str to int
        What each tensor takes that has a layout: those of four dimensions that are not the same in both.
    outputs : frozenset of str
        Tensors that leave the network, whoever else reads them.
    remarks : tuple of str
        What the reader of the model has to say of it.
    in_nhwc : frozenset of str
        Of the tensors that come from outside or leave those that are in NHWC there; all others are in NCHW.
    """

    name: str
    operators: tuple[Operator, ...]
    n_bytes: Mapping[str, int] = field(default_factory=dict)
    outputs: frozenset[str] = frozenset()
    remarks: tuple[str, ...] = ()
    in_nhwc: frozenset[str] = frozenset()

    @property
    def convolutions(self) -> list[Operator]:
        """The operators that are convolutions which can be advised on."""
        return [each for each in self.operators if each.problem is not None]
