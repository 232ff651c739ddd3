"""PyTorch's layer with its epilogue: eager under cudnn.benchmark = True, and compiled by Inductor in two ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

from benchmarks.endings.rows import AUTOTUNED, COMPILED, EAGER
from benchmarks.rivals.pytorch import Peer, PyTorch
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.runner import Runner

MODES: Final = (EAGER, COMPILED, AUTOTUNED)

_OPTIONS: Final[dict[str, dict[str, str]]] = {COMPILED: {}, AUTOTUNED: {"mode": "max-autotune-no-cudagraphs"}}
"""Options of ``torch.compile``. Every call is captured in a graph as it is; another graph within would be refused."""


class CompilingPyTorch(PyTorch):
    """PyTorch with a compiler in some of its modes."""

    modes: ClassVar[tuple[str, ...]] = MODES

    def layer_of(self, problem: ConvProblem, mode: str) -> Callable[..., Any]:
        """The layer, compiled for its very shape where the mode says so."""
        layer = super().layer_of(problem, mode)
        if mode not in _OPTIONS:
            return layer
        compiled: Callable[..., Any] = self._torch.compile(layer, dynamic=False, fullgraph=True, **_OPTIONS[mode])
        return compiled

    def release(self) -> None:
        """Forget what was compiled: the next layer is the same function of other shapes, and PyTorch keeps few."""
        self._torch.compiler.reset()
        super().release()


def open_peer(runner: Runner, device_id: str) -> Peer:
    """PyTorch on the runner's device.

    Raises
    ------
    ImportError
        It is not installed.
    """
    return CompilingPyTorch(runner, device_id)
