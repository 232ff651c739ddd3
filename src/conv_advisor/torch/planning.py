"""A plan of a PyTorch model: variant and layout of each convolution, what it takes and what that gains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from conv_advisor.torch.tracing import network_of

if TYPE_CHECKING:
    from conv_advisor.kernels.variant import Maker
    from conv_advisor.models.planning.plan import Plan


def plan(
    model: nn.Module,
    example_inputs: Any,
    *,
    device: str | None = None,
    max_workspace_bytes: int | None = None,
    deterministic: bool = False,
    only: Maker | str | None = None,
) -> Plan:
    """Plan a model for a GPU, as ``conv-advisor plan`` does of a file.

    Parameters
    ----------
    model : Module
        In evaluation, on any device, in the precision that it is to run in. It is traced, and nothing is computed.
    example_inputs : tensor, tuple or dict
        Only shapes and precisions count. float32 is tf32 where PyTorch would let cuDNN round so.
    device : str, optional
        The one to plan for; by default as in `conv_advisor.advise`.
    max_workspace_bytes : int, optional
        Scratch memory of the whole network; 1 GiB by default.
    deterministic : bool
        Whether only variants will do whose equal inputs give equal bits.
    only : str, optional
        ``cudnn``: only its variants will do.

    Returns
    -------
    plan : Plan
        Its layers with their counts and epilogues, conversions, and what is left out and why.

    Raises
    ------
    InvalidInput
        The model is in training, or cannot be traced; or a value that is not allowed.
    NoAdvice
        It has no convolution that can be advised on.
    UnknownDevice, ModelRejected, StoreError
    """
    network = network_of(model, example_inputs)
    from conv_advisor.app.advice.library import known_within
    from conv_advisor.app.plans.planning import plan_network

    known, limits = known_within(device, max_workspace_bytes, deterministic, only)
    return plan_network(known, network, limits)
