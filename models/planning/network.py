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
        As the model names it.
    kind : str
        What the model's language calls it, such as ``Conv`` or ``MaxPool``.
    reads, writes : tuple of str
        Tensors made by other operators, and tensors that it makes; weights are not among them.
    problem : ConvProblem or None
        The convolution that it is, in NCHW.
    weight : str
        The convolution's weight: several operators may share one.
    takes_either : bool
        Whether it runs as fast in either layout: elementwise operators, pools, concatenations of channels. All others
        but convolutions read and write tensors as the model was written, in NCHW.
    left_out : str
        Why a convolution, or an operator like one, has no problem; empty otherwise.
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
        """Whether it computes something other than a convolution or the like."""
        return self.problem is None and not self.left_out and bool(self.reads)


@dataclass(frozen=True, slots=True)
class Network:
    """A network for one batch and one dtype.

    Parameters
    ----------
    name : str
    operators : tuple of Operator
        Each after the operators that make what it reads.
    n_bytes : mapping of str to int
        Bytes of each tensor that has a layout: tensors of four dimensions that differ between the two.
    outputs : frozenset of str
        Tensors that leave the network, even where operators read them too.
    remarks : tuple of str
        Remarks of the reader of the model.
    in_nhwc : frozenset of str
        Tensors that enter or leave the network in NHWC; all others enter and leave it in NCHW.
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
        return [operator for operator in self.operators if operator.problem is not None]
