"""What the environment decides, read here and nowhere else; units are in the names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

from platformdirs import user_data_path
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from conv_advisor.app.hosts import ANY, LOOPBACK, is_loopback
from conv_advisor.data.errors import InvalidInput

PREFIX: Final = "CONV_ADVISOR_"
SECRETS: Final = Path("/run/secrets")
"""Where containers find secrets: a file that is named like a variable holds its value."""
_LONGEST_S: Final = 30 * 86_400.0
_RATE_PER_S: Final = 100.0
"""The rate of one caller beyond loopback: a page with its parts is ten requests, a scrape of Prometheus one in 15 s."""


_OF_OTHERS: Final = {"OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint"}
"""Variables that others named, and the settings that they say where ours do not."""


class Settings(BaseModel):
    """Every setting; a variable's name is ``CONV_ADVISOR_`` and the field's name in capitals."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(
        default_factory=lambda: user_data_path("conv-advisor", appauthor=False),
        description="Folder of everything that is written: the database, trained models.",
    )
    database_url: str = Field(
        "",
        repr=False,
        description="URL of the store, such as postgresql://user@host/name; empty: a SQLite file in home.",
    )
    device: str = Field(
        "auto",
        description="Device of the worker: cpu, cuda:0, cuda:1 ...; auto: cuda:0 where it can be used, else cpu.",
    )
    advice_device: str = Field(
        "",
        max_length=200,
        pattern=r"^[A-Za-z0-9_.:-]*$",
        description="Id of the device that advice is for where a request names none, such as nvidia-h200; empty: the "
        "worker's GPU, else the one with the most measurements of those that have a tree.",
    )
    scheduler: str = Field(
        "",
        description="Address of a Dask scheduler, tls://host:port or tcp://host:port: its workers do the work.",
    )
    scheduler_ca_file: Path | None = Field(None, description="Authority that signed the cluster's certificates.")
    scheduler_cert_file: Path | None = Field(None, description="Certificate to show in the cluster.")
    scheduler_key_file: Path | None = Field(None, description="Key of that certificate.")
    scheduler_plain: bool = Field(
        False,
        description="Allow tcp:// beyond loopback: whoever can reach a scheduler or a worker then runs code there.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address the service listens on.")
    tokens_file: Path | None = Field(
        None, description="File of the tokens that are let in, as `conv-advisor token` writes it; may change meanwhile."
    )
    tokens: str = Field("", repr=False, description="The same lines, divided by ;")
    allowed_hosts: str = Field(
        "",
        description="Names that a Host header may bear, divided by commas: *.example.org for all below one, * for any; "
        "empty: on loopback its own names, beyond it any.",
    )
    trusted_proxies: str = Field(
        "127.0.0.1", description="Addresses whose X-Forwarded-For and -Proto are believed, divided by commas."
    )
    tls_certificate: Path | None = Field(None, description="PEM file to serve HTTPS with, with its chain.")
    tls_key: Path | None = Field(None, description="PEM file of its key.")
    rate_limit_per_s: float | None = Field(
        None,
        ge=0,
        le=1e6,
        description="Requests a second of one token or address; 0: any; unset: any on loopback, 100 beyond it.",
    )
    rate_limit_burst: int = Field(200, ge=1, description="Requests at once after a pause, where there is a rate.")
    metrics: bool = Field(True, description="Count requests, and answer GET /metrics.")
    otlp_endpoint: str = Field(
        "",
        description="Collector of traces by OTLP over HTTP, such as http://127.0.0.1:4318; empty: no traces.",
    )
    port: int = Field(8000, ge=0, le=65535, description="Port the service listens on; 0: any free one.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = Field("text", description="json: one object a line.")
    max_body_bytes: int = Field(256 * 2**20, ge=1024, description="Longest request body.")
    max_queue: int = Field(64, ge=1, description="Jobs that may wait for one worker.")
    convolution_deadline_s: float = Field(
        60.0, gt=0, le=_LONGEST_S, description="A convolution that overruns it is killed."
    )
    job_deadline_s: float = Field(
        21_600.0,
        gt=0,
        le=_LONGEST_S,
        description="An attempt of a background job that overruns it is killed; what a sweep has measured stays.",
    )
    job_lease_s: float = Field(
        10.0, ge=1, le=3600, description="A job whose server has not been heard of for so long is another's."
    )
    start_timeout_s: float = Field(60.0, gt=0, le=_LONGEST_S, description="Longest start of a worker.")
    workspace_limit_bytes: int = Field(2**30, ge=0, description="Scratch memory a variant may use.")

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda:\d{1,3}", device, re.ASCII):
            raise ValueError("auto, cpu, cuda:0, cuda:1 and so on")
        return device

    @field_validator("scheduler")
    @classmethod
    def _check_scheduler(cls, address: str) -> str:
        if address and not re.fullmatch(r"(tls|tcp)://([\w.-]+|\[[0-9a-fA-F:]+\]):\d{1,5}", address, re.ASCII):
            raise ValueError("tls://host:port, or tcp://host:port on loopback")
        return address

    @field_validator("otlp_endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if endpoint and not re.match(r"https?://[^/]", endpoint):
            raise ValueError("an address that begins with http:// or https://")
        return endpoint

    @property
    def is_local(self) -> bool:
        """Whether nobody but this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that a Host header may bear."""
        names = tuple(name.strip() for name in self.allowed_hosts.split(",") if name.strip())
        if names or not self.is_local:
            return names or (ANY,)
        return (*LOOPBACK, f"[{self.host}]" if ":" in self.host else self.host)

    @property
    def rate_per_s(self) -> float:
        """Requests a second that one caller may make; 0: any."""
        if self.rate_limit_per_s is None:
            return 0.0 if self.is_local else _RATE_PER_S
        return self.rate_limit_per_s

    @property
    def store_url(self) -> str:
        """URL of the store: `database_url`, or a SQLite file in `home`."""
        return self.database_url or f"sqlite:///{self.home / 'conv-advisor.db'}"

    @property
    def has_store(self) -> bool:
        """Whether there is a store already: whoever only asks creates none."""
        return bool(self.database_url) or (self.home / "conv-advisor.db").exists()

    @property
    def models_home(self) -> Path:
        """Home of the registry of models, which keeps those trained here in ``models`` below it."""
        return self.home


def load_settings(**overrides: Any) -> Settings:
    """Read the environment and `SECRETS`, the former before the latter; an override that is not None wins over both.

    Raises
    ------
    InvalidInput
        Naming the variable, its value and what is allowed.
    """
    values: dict[str, Any] = {}
    named_by: dict[str, str] = {}
    for field, name, value in (*_from_secrets(), *_from_environment()):
        values[field], named_by[field] = value, name
    given = {field: value for field, value in overrides.items() if value is not None}
    try:
        return Settings(**values | given)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        name = field if field in given else named_by.get(field, field)
        raise InvalidInput(name, first["input"], first["msg"].removeprefix("Value error, ")) from None


def _from_environment() -> Iterator[tuple[str, str, str]]:
    """Field, variable and value of every setting in the environment; what counts comes last.

    Raises
    ------
    InvalidInput
        A variable is named like a setting, and is none.
    """
    ours = _variables()
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in ours:
            # Never what it says: it may be a password, its name misspelt.
            raise InvalidInput(name, "set", f"one of the settings {', '.join(sorted(ours))}")
    for known in (_OF_OTHERS, ours):
        yield from ((known[name.upper()], name, value) for name, value in os.environ.items() if name.upper() in known)


def _from_secrets() -> Iterator[tuple[str, str, str]]:
    """The same of every file in `SECRETS` that is named like a variable."""
    files = {file.name.upper(): file for file in SECRETS.iterdir() if file.is_file()} if SECRETS.is_dir() else {}
    for known in (_OF_OTHERS, _variables()):
        yield from ((known[name], name, files[name].read_text().strip()) for name in known if name in files)


def _variables() -> dict[str, str]:
    """The fields of the settings by their variables."""
    return {f"{PREFIX}{field.upper()}": field for field in Settings.model_fields}
