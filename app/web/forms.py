"""Form values: kept as typed, so that they can be shown again, and read into a layer and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, urlencode

from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request

from conv_advisor.app.wire.body import arriving, too_long
from conv_advisor.app.wire.layers import LAYER, problem_from
from conv_advisor.app.wire.schemas import AdviceParameters, first_fault
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout

Parameters = TypeVar("Parameters", bound=AdviceParameters)
Typed = TypeVar("Typed", bound=BaseModel)
Member = TypeVar("Member", bound=StrEnum)

MAX_FORM_BYTES: Final = 16_384

SIZES: Final = ("n", "c", "h", "w", "k", "r", "s")
DETAILS: Final = ("stride_h", "stride_w", "pad_h", "pad_w", "dilation_h", "dilation_w", "groups")
LIMITS: Final = ("workspace_mib", "deterministic", "only", "max_error", "max_slowdown")
ENDING: Final = ("pad_h_end", "pad_w_end", "bias", "residual", "activation")
_FIELDS: Final = (*SIZES, *DETAILS)
_MIB: Final = 2**20
_MOST_MIB: Final = 2**40


@dataclass(frozen=True)
class LayerForm:
    """A layer and the limits of advice on it, as typed.

    Parameters
    ----------
    values : mapping of str to str
        By name; what is missing is empty. ``by`` is ``short`` or ``fields``: which way of writing the layer counts.
    """

    values: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    @property
    def is_by_fields(self) -> bool:
        """Whether the sizes by name count, and not the short form."""
        return self["by"] == "fields"

    @property
    def is_empty(self) -> bool:
        """Whether no layer was typed at all."""
        return not any(self[name] for name in ("layer", *SIZES))

    def parameters(self, kind: type[Parameters], **extra: str) -> Parameters:
        """The parameters that the form requests.

        Raises
        ------
        InvalidInput
        """
        names = (*_FIELDS, *ENDING) if self.is_by_fields else ("layer",)
        values = {name: self[name] for name in (*names, "dtype", "layout", "device", "deterministic", "only")} | extra
        if self["workspace_mib"]:
            values["max_workspace_bytes"] = str(_workspace_bytes(self["workspace_mib"]))
        return typed(kind, values)

    def kept(self, *names: str) -> dict[str, str]:
        """The typed values of these fields, without the empty ones."""
        return {name: self[name] for name in names if self[name]}

    def problem(self) -> ConvProblem:
        """The layer.

        Raises
        ------
        InvalidInput
        """
        return problem_from(self.parameters(AdviceParameters).given())

    def filled(self, problem: ConvProblem, device_id: str) -> LayerForm:
        """The same form with both ways of writing this layer."""
        written = {name: str(getattr(problem, name)) for name in _FIELDS} | _written_ending(problem)
        known = {"layer": problem.brief, "dtype": problem.dtype, "layout": problem.layout, "device": device_id}
        return replace(self, values={**self.values, **written, **known})

    def address(self, path: str, **changes: Any) -> str:
        """The address of the page for this form, with some values changed; empty ones are left out."""
        names = ("layer", "dtype", "layout", "device", *LIMITS)
        return address(path, **({name: self[name] for name in names} | changes))


def typed(kind: type[Typed], values: Mapping[str, str]) -> Typed:
    """Parameters from typed values; empty ones are left out.

    Raises
    ------
    InvalidInput
    """
    try:
        return kind.model_validate_strings({name: value for name, value in values.items() if value})
    except ValidationError as error:
        raise InvalidInput(*first_fault(error)) from None


def member(kind: type[Member], field: str, value: str) -> Member:
    """The member of an enumeration with this value.

    Raises
    ------
    InvalidInput
    """
    try:
        return kind(value)
    except ValueError:
        raise InvalidInput(field, value, ", ".join(kind)) from None


def _written_ending(problem: ConvProblem) -> dict[str, str]:
    """The fields of `ENDING` as they are typed: empty where they have their defaults."""
    pads = ("pad_h_end", "pad_w_end")
    ends = {name: str(getattr(problem, name)) if problem.has_uneven_padding else "" for name in pads}
    epilogue = problem.epilogue
    added = {"bias": "true" * epilogue.bias, "residual": "true" * epilogue.residual}
    return {**ends, **added, "activation": epilogue.activation}


def address(path: str, **values: Any) -> str:
    """A path with a query of those values that are not empty."""
    query = urlencode({name: value for name, value in values.items() if value not in ("", None)})
    return f"{path}?{query}" if query else path


def layer_form(sent: Mapping[str, str]) -> LayerForm:
    """The form as it was sent; without a layer, that of the example layer.

    Spaces around pasted values are removed.
    """
    known = ("by", "layer", *_FIELDS, *ENDING, "dtype", "layout", "device", *LIMITS, "network", "variant", "language")
    values = {name: sent[name].strip()[:400] for name in known if sent.get(name, "").strip()}
    form = LayerForm({"by": "short", "dtype": DType.FLOAT32, "layout": Layout.NCHW, **values})
    return replace(form, values={**form.values, "layer": LAYER}) if form.is_empty else form


async def read_form(request: Request) -> dict[str, str]:
    """A form that was posted; where a name occurs twice, the last value counts.

    Raises
    ------
    InvalidInput
    HTTPException
        413
    """
    body = bytearray()
    async for chunk in arriving(request):
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, too_long(MAX_FORM_BYTES))
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=100))
    except ValueError as error:
        raise InvalidInput("form", bytes(body[:80]), f"application/x-www-form-urlencoded ({error})") from None


def _workspace_bytes(text: str) -> int:
    try:
        mib = float(text)
    except ValueError:
        mib = -1.0
    if not 0 <= mib <= _MOST_MIB:
        raise InvalidInput("workspace_mib", text, f"a number of MiB from 0 to {_MOST_MIB}")
    return round(mib * _MIB)
