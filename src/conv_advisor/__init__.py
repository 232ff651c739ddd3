"""conv-advisor: which convolution algorithm is fastest for a layer on a GPU, how fast, and how sure.

    >>> import conv_advisor
    >>> conv_advisor.advise("14-1-3-256-128", dtype="float16", layout="nhwc", device="nvidia-h200")

needs no server and no GPU. The four rooms lie at the top of the repository and are reached through this package, so
that an installation has one name in site-packages: ``data`` the facts, ``kernels`` what runs or times a convolution,
``models`` from measurements to advice, ``app`` how people reach it.

Names are loaded when they are first asked for, so that importing the package takes next to no time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conv_advisor.app.advice.answer import LayerAdvice
    from conv_advisor.app.advice.library import advise
    from conv_advisor.app.client.asynchronous import AsyncClient
    from conv_advisor.app.client.client import Client
    from conv_advisor.data.errors import ConvAdvisorError, Refused, Unreachable
    from conv_advisor.data.problem import ConvProblem, DType, Layout

    __version__: str

__all__ = [
    "AsyncClient",
    "Client",
    "ConvAdvisorError",
    "ConvProblem",
    "DType",
    "LayerAdvice",
    "Layout",
    "Refused",
    "Unreachable",
    "__version__",
    "advise",
]

_MODULES = {
    "advise": "app.advice.library",
    "LayerAdvice": "app.advice.answer",
    "Client": "app.client.client",
    "AsyncClient": "app.client.asynchronous",
    "ConvAdvisorError": "data.errors",
    "Refused": "data.errors",
    "Unreachable": "data.errors",
    "ConvProblem": "data.problem",
    "DType": "data.problem",
    "Layout": "data.problem",
}

if not TYPE_CHECKING:  # else a type checker would accept any name as one of ours

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name == "__version__":
            value: object = import_module(f"{__name__}.data.version").version()
        elif name in _MODULES:
            value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
