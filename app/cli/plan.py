"""The command that plans a whole network."""

from __future__ import annotations

from typing import Annotated

import typer

from conv_advisor.app.cli.complete import models
from conv_advisor.app.cli.environment import load_settings
from conv_advisor.app.cli.limits import AdvisedDevice, Deterministic, Only, limits_of
from conv_advisor.app.cli.output import AsJson, OwnDType
from conv_advisor.data.errors import InvalidInput


def plan(
    model: Annotated[
        str,
        typer.Argument(
            help="An ONNX file, a network that `networks` lists, or torchvision:<name>.", autocompletion=models
        ),
    ],
    batch: Annotated[int | None, typer.Option(min=1, help="Batch size.  [default: 1]")] = None,
    batches: Annotated[str | None, typer.Option(help="Several batch sizes, such as 1,8,32: a line each.")] = None,
    dtype: OwnDType = None,
    dims: Annotated[
        str, typer.Option(help="Sizes of the model's symbolic dimensions, such as height=224,width=224.")
    ] = "",
    device: AdvisedDevice = None,
    max_workspace_bytes: Annotated[
        int | None, typer.Option(min=0, help="Scratch memory of the whole network.  [default: 1 GiB]")
    ] = None,
    deterministic: Deterministic = False,
    only: Only = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values.")] = False,
) -> None:
    """Plan a network: a variant and a layout for each convolution.

    The plan has the total time and the gain over PyTorch and cuDNN.
    """
    from conv_advisor.app.advice.local import Local
    from conv_advisor.app.cli import say_plan
    from conv_advisor.app.plans.asked import network_from
    from conv_advisor.app.plans.parameters import batches_of, dims_of
    from conv_advisor.app.plans.planning import plan_network

    if batch is not None and batches is not None:
        raise InvalidInput("--batch", batch, "not together with --batches")
    if as_json and as_csv:
        raise InvalidInput("--csv", "given", "not together with --json")
    counts = [batch or 1] if batches is None else batches_of(batches)
    sizes = dims_of(dims)
    local = Local(load_settings(), is_brief=True)
    limits = limits_of(local, device, max_workspace_bytes, deterministic, only)
    plans = {
        count: plan_network(local, network_from(model, batch=count, dtype=dtype, dims=sizes), limits)
        for count in counts
    }
    say_plan.show(plans, as_json=as_json, as_csv=as_csv)
