"""The same question asked elsewhere: by an address to share, over HTTP, in Python and on the command line."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conv_advisor.app.web.forms import LayerForm, address
from conv_advisor.app.wire.schemas import AdviceParameters


@dataclass(frozen=True)
class Here:
    """This service as its clients reach it.

    Parameters
    ----------
    base : str
        Its address, without a slash at its end.
    needs_token : bool
        Whether a call of the API has to show one.
    """

    base: str
    needs_token: bool

    def curl(self, api: str) -> str:
        """A shell command that requests this path and query of the API."""
        token = ' -H "Authorization: Bearer $TOKEN"' if self.needs_token else ""
        return f"curl{token} {shlex.quote(self.base + api)}"


@dataclass(frozen=True)
class Elsewhere:
    """Up to four ways to the same answer.

    Parameters
    ----------
    link : str
        Address of the page.
    api : str
        Path and query of the API.
    curl, python, command : str
        The request in a shell, in Python and on the command line; empty where there is none.
    """

    link: str
    api: str
    curl: str
    python: str = ""
    command: str = ""


def advice_elsewhere(here: Here, form: LayerForm) -> Elsewhere:
    """Other ways to the advice on a filled form.

    Raises
    ------
    InvalidInput
    """
    values = _asked(form)
    is_deterministic = values.pop("deterministic", None)
    api = address("/v1/advice", layer=form["layer"], **values, deterministic=is_deterministic)
    keywords = [f"{name}={value!r}" for name, value in values.items()]
    keywords += ["deterministic=True"] if is_deterministic else []
    options = _options(values) + (["--deterministic"] if is_deterministic else [])
    return Elsewhere(
        link=here.base + form.address("/"),
        api=api,
        curl=here.curl(api),
        python=f"conv_advisor.advise({form['layer']!r}, {', '.join(keywords)})",
        command=shlex.join(["conv-advisor", "advise", form["layer"], *options]),
    )


def map_elsewhere(here: Here, form: LayerForm, x: str, y: str) -> Elsewhere:
    """Other ways to the map of a filled form.

    Raises
    ------
    InvalidInput
    """
    api = address("/v1/landscapes", layer=form["layer"], **_asked(form), x=x, y=y)
    return Elsewhere(link=here.base + form.address("/map", x=x, y=y), api=api, curl=here.curl(api))


def plan_elsewhere(here: Here, name: str, parameters: Mapping[str, str]) -> Elsewhere:
    """Other ways to the plan of a network that ships; its parameters are batches, dtype, device, only."""
    api = address("/v1/plans", name=name, **parameters)
    batches = [int(word) for word in parameters["batches"].split(",")]
    keywords = [f"{key}={batches if key == 'batches' else value!r}" for key, value in parameters.items()]
    token = ', token=os.environ["TOKEN"]' if here.needs_token else ""
    return Elsewhere(
        link=here.base + address("/plan", name=name, **parameters),
        api=api,
        curl=here.curl(api),
        python=f"conv_advisor.Client({here.base!r}{token}).plan({name!r}, {', '.join(keywords)})",
        command=shlex.join(["conv-advisor", "plan", name, *_options(parameters)]),
    )


def _asked(form: LayerForm) -> dict[str, Any]:
    """Parameters of advice other than the layer, by the API's names."""
    parameters = form.parameters(AdviceParameters)
    values: dict[str, Any] = {name: str(form[name]) for name in ("dtype", "layout", "device")}
    values |= {"max_workspace_bytes": parameters.max_workspace_bytes, "only": form["only"]}
    values |= {"deterministic": "true" if parameters.deterministic else None}
    return {name: value for name, value in values.items() if value not in ("", None)}


def _options(values: Mapping[str, Any]) -> list[str]:
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
