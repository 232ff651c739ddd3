"""The same question asked elsewhere: by an address to share, over HTTP, in Python and on the command line."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from conv_advisor.app.web.forms import LayerForm, address
from conv_advisor.app.wire.schemas import AdviceParameters


@dataclass(frozen=True)
class Elsewhere:
    """One answer, four ways to it.

    Parameters
    ----------
    link : str
        The page's.
    api : str
        Path and query of the API.
    curl, python, command : str
        What asks for it in a shell, in Python and on the command line.
    """

    link: str
    api: str
    curl: str
    python: str
    command: str


def elsewhere(form: LayerForm, base: str, *, needs_token: bool) -> Elsewhere:
    """Where else a form's question has the same answer.

    Parameters
    ----------
    form : LayerForm
        Filled.
    base : str
        Address of this service, without a slash at its end.
    needs_token : bool
        Whether a call of the API has to show one.

    Raises
    ------
    InvalidInput
    """
    asked = form.parameters(AdviceParameters)
    values: dict[str, Any] = {name: str(form[name]) for name in ("dtype", "layout", "device")}
    if asked.max_workspace_bytes is not None:
        values["max_workspace_bytes"] = asked.max_workspace_bytes
    api = address("/v1/advice", layer=form["layer"], **values, deterministic="true" if asked.deterministic else "")
    token = ' -H "Authorization: Bearer $TOKEN"' if needs_token else ""
    options = [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    options += ["--deterministic"] if asked.deterministic else []
    keywords = [f"{name}={value!r}" for name, value in values.items()]
    keywords += ["deterministic=True"] if asked.deterministic else []
    return Elsewhere(
        link=base + form.address("/"),
        api=api,
        curl=f"curl{token} {shlex.quote(base + api)}",
        python=f"conv_advisor.advise({form['layer']!r}, {', '.join(keywords)})",
        command=shlex.join(["conv-advisor", "advise", form["layer"], *options]),
    )
