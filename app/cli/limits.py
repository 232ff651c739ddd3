"""The options that every command that advises has: the device, and what a variant must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conv_advisor.app.cli.complete import devices
from conv_advisor.data.errors import NotEnoughData, UnknownDevice
from conv_advisor.kernels.variant import Maker

if TYPE_CHECKING:
    from conv_advisor.app.advice.limits import Limits
    from conv_advisor.app.advice.local import Local


def named_device(device: str | None) -> str | None:
    """The device's name; an empty one is refused, since it comes from a shell variable that was not set."""
    if device == "":
        raise typer.BadParameter("''; leave it out for the default")
    return device


AdvisedDevice = Annotated[
    str | None,
    typer.Option(
        help="Device by its id or another name: a100, rtx4090, cuda:0.  [default: that with the most measurements]",
        autocompletion=devices,
        callback=named_device,
    ),
]
Deterministic = Annotated[
    bool, typer.Option("--deterministic", help="Only variants that give equal bits for equal inputs.")
]
Only = Annotated[Maker | None, typer.Option(help="Only variants of this maker.")]


def limits_of(
    local: Local, device: str | None, max_workspace_bytes: int | None, deterministic: bool, only: Maker | None
) -> Limits:
    """The limits that were asked for, else those of the settings.

    Raises
    ------
    NotEnoughData
        The device is this processor, of which nothing is known yet; the error says how to change that.
    UnknownDevice
    """
    from conv_advisor.app.advice.limits import Limits

    limit = local.settings.workspace_limit_bytes if max_workspace_bytes is None else max_workspace_bytes
    try:
        return Limits(local.known.asked_id(device), limit, deterministic, only)
    except UnknownDevice:
        if device != "cpu":
            raise
        steps = "conv-advisor sweep --device cpu does, and conv-advisor train --device cpu then learns from it"
        raise NotEnoughData(f"device cpu: nothing was measured on it; {steps}") from None
