"""A family of kernels: a folder that exposes its variants, its sources, and the model that chooses its cuts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any, Final

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.parts.source import Source
from conv_advisor.kernels.variant import Backend, Ending, Launch, Variant

Prepare = Callable[[ConvProblem, Device, int], Launch]
"""Plans, compiles and allocates on the current device; the last argument limits the workspace in bytes."""


@dataclass(frozen=True)
class Tuning:
    """A model of the time that chooses among cuts, with what refitting it needs.

    Parameters
    ----------
    expected : callable (problem, device) -> dict
        Every cut that the model chooses from, and its expected time in us.
    launch : callable (problem, device, cut) -> Launch
        Needs a GPU.
    constants : module
        Holds the fitted constants, by names in capitals.
    serves : tuple of str
        Variants of other families that launch its cuts too.
    """

    expected: Callable[[ConvProblem, Device], Mapping[Any, float]]
    launch: Callable[[ConvProblem, Device, Any], Launch]
    constants: ModuleType
    serves: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """The sources of a family, and what prepares its launches.

    Parameters
    ----------
    sources : tuple of Source
        Everything that its launchers compile.
    prepare : dict of str to callable (problem, device, workspace_limit_bytes) -> Launch
        By variant id. Raises WorkspaceExceeded, and whatever CUDA raises.
    tuning : Tuning, optional
        Where a fitted model chooses the cut.
    """

    sources: tuple[Source, ...]
    prepare: Mapping[str, Prepare] = field(default_factory=dict)
    tuning: Tuning | None = None


MakeKernel = Callable[[], Kernel]
"""Imports a family's plans and launchers on first use: callers that need only the rules, as advice does, skip that."""


@dataclass(frozen=True, slots=True)
class CudaVariant(Variant):
    """A variant of ours, with the kernel that prepares it.

    Parameters
    ----------
    kernel : callable () -> Kernel
        The family's.
    """

    kernel: MakeKernel = field(kw_only=True)

    def prepare(self, problem: ConvProblem, device: Device, workspace_limit_bytes: int) -> Launch:
        """As `Kernel.prepare`."""
        return self.kernel().prepare[self.id](problem, device, workspace_limit_bytes)


cuda_variant: Final = partial(CudaVariant, backend=Backend.CUDA, is_deterministic=True, ending=Ending.FUSED)


@dataclass(frozen=True)
class Family:
    """One folder of ``kernels/cuda``, as the catalogue lists it.

    Parameters
    ----------
    name : str
        The folder's.
    kernel : callable () -> Kernel
    variants : tuple of CudaVariant
        In the order that a sweep tries them.
    """

    name: str
    kernel: MakeKernel
    variants: tuple[CudaVariant, ...] = ()
