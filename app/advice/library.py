"""``conv_advisor.advise``: advice in a Python program or a notebook, without a server."""

from __future__ import annotations

import os
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any

from conv_advisor.app.advice.advise import advise_one
from conv_advisor.app.advice.answer import LayerAdvice
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.advice.local import Local
from conv_advisor.app.settings import load_settings
from conv_advisor.app.wire.spellings import dtype_of, layout_of
from conv_advisor.data.epilogue import Epilogue
from conv_advisor.data.errors import InvalidInput, InvalidProblem
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.variant import Maker

if TYPE_CHECKING:
    from conv_advisor.data.problem import DType, Layout


def advise(
    layer: str | ConvProblem,
    *,
    dtype: DType | str | None = None,
    layout: Layout | str | None = None,
    device: str | None = None,
    max_workspace_bytes: int | None = None,
    deterministic: bool = False,
    only: Maker | str | None = None,
    epilogue: Epilogue | str | None = None,
) -> LayerAdvice:
    """Which variant is fastest for a layer, how fast, how sure, and why the others are out.

    The answer is the one that a server and the command line give with the same settings (``CONV_ADVISOR_<NAME>`` in the
    environment, read at the first call).

    Parameters
    ----------
    layer : str or ConvProblem
        ``size-batch-filter-filters-depth``, such as ``14-1-3-256-128``; a `ConvProblem` where it is no plain layer.
    dtype, layout : str, optional
        For a layer that is given by name; float32 (no tensor cores) and nchw by default.
    device : str, optional
        By any of its names, such as ``h100`` or ``rtx 4090``; one that has neither a tree nor measurements borrows the
        tree of the nearest that has, and ``trust`` says so. By default the one that ``CONV_ADVISOR_ADVICE_DEVICE``
        names, else that with the most measurements of those that have a tree.
    max_workspace_bytes : int, optional
        Scratch memory that a variant may use; 1 GiB by default.
    deterministic : bool
        Whether only variants will do whose equal inputs give equal bits.
    only : str, optional
        ``cudnn``: only its variants will do.
    epilogue : Epilogue or str, optional
        What follows the convolution, such as ``bias-residual-relu``. Where it is not known what that adds on the
        device, and no time with it was measured, the advice is that on the convolution alone, and ``uncounted`` has
        the epilogue.

    Returns
    -------
    advice : LayerAdvice

    Raises
    ------
    InvalidInput, InvalidProblem, InvalidLayerName
        A value that is not allowed.
    UnknownDevice
        The device has neither a tree nor measurements, and nothing is published of it.
    NoAdvice
        No variant is known to run within the limits.
    ModelRejected, StoreError

    Examples
    --------
    >>> import conv_advisor
    >>> advice = conv_advisor.advise("14-1-3-256-128", dtype="float16", layout="nhwc", device="nvidia-h200")
    >>> advice.best.variant == advice.variant == advice.ranking[0].variant
    True
    """
    local, limits = known_within(device, max_workspace_bytes, deterministic, only)
    advice = advise_one(local, _problem_of(layer, dtype, layout, epilogue), limits)
    return LayerAdvice(**{field.name: getattr(advice, field.name) for field in fields(advice)})


def known_within(
    device: str | None, max_workspace_bytes: int | None, deterministic: bool, only: Maker | str | None
) -> tuple[Local, Limits]:
    """The devices and measurements of this process, and the limits of a program, which `advise` takes by these names.

    Raises
    ------
    InvalidInput
        A value that is not allowed.
    UnknownDevice, StoreError
    """
    if max_workspace_bytes is not None and (type(max_workspace_bytes) is not int or max_workspace_bytes < 0):
        raise InvalidInput("max_workspace_bytes", max_workspace_bytes, "a number of bytes, from 0, or None")
    if type(deterministic) is not bool:
        raise InvalidInput("deterministic", deterministic, "True or False")
    maker, local = _maker_of(only), _local()
    return local, Limits(
        local.known.asked_id(device),
        local.settings.workspace_limit_bytes if max_workspace_bytes is None else max_workspace_bytes,
        deterministic,
        maker,
    )


@cache
def _local() -> Local:
    return Local(load_settings())


os.register_at_fork(after_in_child=_local.cache_clear)  # a database connection serves one process


def _maker_of(only: Maker | str | None) -> Maker | None:
    try:
        return None if only is None else Maker(only)
    except ValueError:
        raise InvalidInput("only", only, f"{', '.join(Maker)}, or None") from None


def _problem_of(
    layer: str | ConvProblem, dtype: DType | str | None, layout: Layout | str | None, epilogue: Epilogue | str | None
) -> ConvProblem:
    options: dict[str, Any] = {} if dtype is None else {"dtype": dtype_of(dtype)}
    options |= {} if layout is None else {"layout": layout_of(layout)}
    if epilogue is not None:
        options["epilogue"] = Epilogue.parse(epilogue) if isinstance(epilogue, str) else epilogue
    if isinstance(layer, str):
        return ConvProblem.parse(layer, **options)
    if not isinstance(layer, ConvProblem):
        raise InvalidInput("layer", layer, "a layer's name, such as '14-1-3-256-128', or a ConvProblem")
    for name, value in options.items():
        raise InvalidProblem(name, value, "not together with a ConvProblem, which has it")
    return layer
