"""One problem's operands, and how far from float64 a variant is on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from math import inf, isfinite
from typing import Any, Final, Protocol

import torch

from conv_advisor.data.epilogue import Activation
from conv_advisor.data.errors import RunError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.tolerance import tolerance
from conv_advisor.models.ranking.accuracy import LEANINGS, allowed_error
from conv_advisor.torch.calls.layers import MEMORY_FORMATS, TORCH_DTYPES, geometry_of_problem
from conv_advisor.torch.calls.own import ACTIVATE, own_convolution, own_prologue, own_steps

_LEAST_OUTPUTS: Final = 64
"""How many outputs tell of a leaning: the roundings of fewer may lean by chance."""


class Runs(Protocol):
    """Something that convolves, and ends as its problem does."""

    def run_into(self, x: Any, weight: Any, y: Any, *ends: Any) -> bool:
        """Write y, dense in the problem's layout; bias and residual follow where one of them is added.

        False, and y is as it was, where an operand is not aligned.
        """
        ...


class Operands:
    """Random operands of one problem, the same for every variant: bias and residual too, where its epilogue has them.

    Parameters
    ----------
    problem : ConvProblem
    device : torch.device or str
    max_error_ratio : float
        As in `Options`.

    Attributes
    ----------
    x, weight : tensor
    ends : tuple of tensor or None
        Bias and residual where the epilogue adds one of them, else nothing.
    """

    def __init__(self, problem: ConvProblem, device: Any, max_error_ratio: float = inf) -> None:
        self._problem, self._max_error_ratio = problem, max_error_ratio
        self._geometry = geometry_of_problem(problem).arguments
        self._generator = torch.Generator(device).manual_seed(0)
        self.x = self._random(problem.n, problem.c, problem.h, problem.w)
        self.weight = self._random(problem.k, problem.c // problem.groups, problem.r, problem.s)
        self._bias = self._random(problem.k) if problem.epilogue.bias else None
        self._residual = self._random(problem.n, problem.k, problem.p, problem.q) if problem.epilogue.residual else None
        is_added = problem.epilogue.bias or problem.epilogue.residual
        self.ends = (self._bias, self._residual) if is_added else ()

    def own(self) -> Any:
        """What PyTorch's own convolution makes of them, and its own operators of what follows."""
        names = (self._problem.epilogue.activation.value, self._problem.key)
        return own_steps(self.x, self.weight, self._bias, self._residual, *self._geometry, *names)

    def run_as_compiled(self) -> Any:
        """Run what a compiled graph would in the place of this problem; the values that it returns mean nothing.

        PyTorch's own convolution, and where anything follows one elementwise kernel behind it, into which Inductor
        fuses bias, residual and activation: it reads y and the residual, and writes as much as y. Which function it
        computes takes no time that counts, and so it is PyTorch's sum, or its ReLU where there is no residual.
        """
        y = own_convolution(self.x, self.weight, *self._geometry, self._problem.key)
        if not self._problem.epilogue:
            return y
        return torch.relu(y) if self._residual is None else torch.add(y, self._residual)

    @cached_property
    def own_error(self) -> float:
        """The error of PyTorch's own convolution and what follows it, as `checked_error` has it."""
        return self._error(self.own())

    def checked_error(self, run: Runs) -> float:
        """max |y - y64| / max |y64| of the first image, every output of it; the others must have been written.

        Relative to the largest sum before the activation, where that is larger: see `kernels.comparison.max_error`.

        Raises
        ------
        RunError
            It is wrong, further off than `allowed_error` says, or its errors lean to one side by more than `LEANINGS`
            says; unless there is no bound.
        """
        problem = self._problem
        y = self._empty(problem.n, problem.k, problem.p, problem.q).fill_(torch.nan)
        run.run_into(self.x, self.weight, y, *self.ends)
        error = self._error(y)
        allowed = allowed_error(problem, self.own_error, self._max_error_ratio)
        if not error <= allowed or not bool(torch.isfinite(y).all()):
            raise RunError(f"max error {error:.3g}, allowed {allowed:.3g}; PyTorch's own shows {self.own_error:.3g}")
        leaning, most = self._leaning(y), LEANINGS[problem.dtype]
        if abs(leaning) > most and isfinite(self._max_error_ratio):
            raise RunError(
                f"the bias of its errors is {leaning:.3g} of y, allowed {most:.3g}: a bias adds up from layer to layer"
            )
        return error

    def checked_behind_prologue(self, run: Any) -> Callable[[], Any]:
        """A call of what takes a prologue, once that was found to be what it computes of an x made ahead.

        Raises
        ------
        RunError
        """
        problem = self._problem
        prologue = torch.empty(2, problem.c, device=self.x.device).uniform_(-1, 1, generator=self._generator)
        expected, y = (self._empty(problem.n, problem.k, problem.p, problem.q).fill_(torch.nan) for _ in range(2))
        run.run_into(
            own_prologue(self.x, prologue).contiguous(memory_format=torch.channels_last),
            self.weight,
            expected,
            *self.ends,
        )

        def behind_prologue() -> Any:
            run.run_behind_prologue(self.x, self.weight, y, prologue, *self.ends, channels=problem.c)
            return y

        error = float((behind_prologue() - expected).abs().max() / expected.abs().max().clamp_min(1e-30))
        allowed = tolerance(problem)
        if not error <= allowed:
            raise RunError(
                f"behind a prologue it is {error:.3g} from itself behind a kernel of one, allowed {allowed:.3g}"
            )
        return behind_prologue

    def _leaning(self, y: Any) -> float:
        """By how much the first image of y is too large in all, relative to the sum of its absolute values."""
        expected, _ = self._expected
        if expected.numel() < _LEAST_OUTPUTS:
            return 0.0
        errors = (y[:1].double() - expected) * expected.sign()
        return float(errors.sum() / expected.abs().sum())

    def _error(self, y: Any) -> float:
        expected, scale = self._expected
        return float((y[:1].double() - expected).abs().max() / scale)

    @cached_property
    def _expected(self) -> tuple[Any, Any]:
        """The first image of y in float64, and what errors are relative to."""
        bias = None if self._bias is None else self._bias.double()
        residual = None if self._residual is None else self._residual[:1].double()
        names = Activation.NONE.value, self._problem.key
        sums = own_steps(self.x[:1].double(), self.weight.double(), bias, residual, *self._geometry, *names)
        y = ACTIVATE[self._problem.epilogue.activation](sums)
        return y, torch.maximum(sums.abs().max(), y.abs().max())

    def _random(self, *shape: int) -> Any:
        values = torch.empty(shape, device=self._generator.device).uniform_(-1, 1, generator=self._generator)
        return self._empty(*shape).copy_(values)

    def _empty(self, *shape: int) -> Any:
        memory_format = MEMORY_FORMATS[self._problem.layout] if len(shape) == 4 else torch.contiguous_format
        dtype = TORCH_DTYPES[self._problem.dtype]
        return torch.empty(shape, dtype=dtype, device=self._generator.device, memory_format=memory_format)
