"""One problem's operands, and how far from float64 a variant is on them."""

from __future__ import annotations

from functools import cached_property
from math import inf
from typing import Any, Protocol

import torch

from conv_advisor.data.errors import RunError
from conv_advisor.data.problem import ConvProblem
from conv_advisor.models.accuracy import allowed_error
from conv_advisor.torch.layers import MEMORY_FORMATS, TORCH_DTYPES, geometry_of_problem
from conv_advisor.torch.operator import own_convolution


class Runs(Protocol):
    """Something that convolves: called with x and weight it returns y, or it writes into a y that it is given."""

    def __call__(self, x: Any, weight: Any) -> Any:
        """The convolution."""
        ...

    def run_into(self, x: Any, weight: Any, y: Any) -> None:
        """The same into y, dense in the problem's layout."""
        ...


class Operands:
    """Random operands of one problem, the same for every variant.

    Parameters
    ----------
    problem : ConvProblem
    device : torch.device or str
    max_error_ratio : float
        As in `Options`.

    Attributes
    ----------
    x, weight : tensor
    """

    def __init__(self, problem: ConvProblem, device: Any, max_error_ratio: float = inf) -> None:
        self._problem, self._max_error_ratio = problem, max_error_ratio
        self._geometry = geometry_of_problem(problem).arguments
        self._generator = torch.Generator(device).manual_seed(0)
        self.x = self._random(problem.n, problem.c, problem.h, problem.w)
        self.weight = self._random(problem.k, problem.c // problem.groups, problem.r, problem.s)

    def own(self) -> Any:
        """What PyTorch's own convolution makes of them."""
        return own_convolution(self.x, self.weight, *self._geometry, self._problem.key)

    @cached_property
    def own_error(self) -> float:
        """The error of PyTorch's own convolution, as `checked_error` has it."""
        return self._error(self.own())

    def checked_error(self, run: Runs) -> float:
        """max |y - y64| / max |y64| of the first image, every output of it; the others must have been written.

        Raises
        ------
        RunError
            It is wrong, or further off than `allowed_error` says.
        """
        y = torch.full_like(run(self.x, self.weight), torch.nan)
        run.run_into(self.x, self.weight, y)
        error = self._error(y)
        allowed = allowed_error(self._problem, self.own_error, self._max_error_ratio)
        if not error <= allowed or not bool(torch.isfinite(y).all()):
            raise RunError(f"max error {error:.3g}, allowed {allowed:.3g}; PyTorch's own shows {self.own_error:.3g}")
        return error

    def _error(self, y: Any) -> float:
        return float((y[:1].double() - self._expected).abs().max() / self._expected.abs().max())

    @cached_property
    def _expected(self) -> Any:
        return torch.nn.functional.conv2d(self.x[:1].double(), self.weight.double(), None, *self._geometry)

    def _random(self, *shape: int) -> Any:
        values = torch.empty(shape, device=self._generator.device).uniform_(-1, 1, generator=self._generator)
        return values.to(TORCH_DTYPES[self._problem.dtype], memory_format=MEMORY_FORMATS[self._problem.layout])
