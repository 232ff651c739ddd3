"""What the tests of conv_advisor.torch share: a chooser that needs no GPU, and a compiler that only captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conv_advisor.data.problem import ConvProblem, Layout

if TYPE_CHECKING:
    from tests.pytorch.stand_in import FakeGpu


class EverythingAdvised:
    """A chooser that puts the operator in the place of every problem, and remembers what it was asked.

    Attributes
    ----------
    takes_endings : bool
        Whether it has variants for problems with an epilogue; if not, it remembers problems without one alone.
    gains : dict of ConvProblem to float
        All other problems gain 2.
    times_ms : dict of Layout to float
        Time of every convolution, predicted and measured; a layout that is not in it has no prediction.
    conversion : float
        Time of each conversion, ms.
    layouts : tuple of Layout
        Those that were chosen last.
    """

    def __init__(self) -> None:
        self.takes_endings = False
        self.gains: dict[ConvProblem, float] = {}
        self.layers: dict[ConvProblem, str] = {}
        self.options: Any = None
        self.graphs = 0
        self.times_ms: dict[Layout, float] = {}
        self.conversion = 0.001
        self.layouts: tuple[Layout, ...] = ()

    def choose(self, layers: Mapping[ConvProblem, str], options: Any) -> Mapping[ConvProblem, Any]:
        from conv_advisor.torch.choosing.choice import Choice

        taken = {problem: layer for problem, layer in layers.items() if self.takes_endings or not problem.epilogue}
        self.layers |= taken
        self.options = options
        self.graphs += len(taken) == len(layers)
        return dict.fromkeys(layers, Choice(None, reason="no variant applies")) | {
            problem: Choice(
                "cuda.implicit_gemm",
                time_ms=self.times_ms.get(problem.layout, 0.01),
                torch_ms=self.times_ms.get(problem.layout, 0.01) * self.gains.get(problem, 2.0),
            )
            for problem in taken
        }

    def kept(self, problem: ConvProblem, options: Any) -> None:
        return None

    def choose_behind_prologues(self, problems: Mapping[ConvProblem, float], options: Any) -> set[ConvProblem]:
        return set()

    def predicted_ms(self, problem: ConvProblem, options: Any) -> float | None:
        return self.times_ms.get(problem.layout)

    def conversion_ms(self, n_bytes: int, options: Any) -> float:
        return self.conversion

    def kept_layouts(self, network: str, options: Any) -> None:
        return None

    def keep_layouts(self, network: str, layouts: Sequence[Layout], options: Any) -> None:
        self.layouts = tuple(layouts)


@pytest.fixture
def chooser(monkeypatch: pytest.MonkeyPatch) -> Iterator[EverythingAdvised]:
    """Every convolution is advised, on a CPU; what is compiled is forgotten afterwards."""
    import torch

    chooser = EverythingAdvised()
    for name in ("backend", "swapping"):  # as an attribute of its package, backend is the function
        module = import_module(f"conv_advisor.torch.{name}")
        monkeypatch.setattr(module, "chooser_for", lambda _inputs: chooser)
    torch.compiler.reset()
    yield chooser
    torch.compiler.reset()


@pytest.fixture
def fake_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeGpu]:
    """A GPU whose kernels are NumPy, for one test; PyTorch would ask a real one for its properties."""
    import torch

    from tests.pytorch.stand_in import opened

    if torch.cuda.is_available():
        pytest.skip("a CPU stands in for a GPU where there is none")

    with opened(monkeypatch, tmp_path) as fake:
        yield fake


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """AOTAutograd runs what it captured as it is, where Inductor would compile it: the graph work is the same."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def compile_fx(gm: Any, inputs: Any, config_patches: Any = None) -> Any:
        return aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward))(gm, inputs)

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    return compile_fx
