"""Settings from the environment, which is read only here; units are in the names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta
from platformdirs import user_data_path

from conv_advisor.app.hosts import ANY, LOOPBACK, is_loopback
from conv_advisor.data.errors import InvalidInput

PREFIX: Final = "CONV_ADVISOR_"
SECRETS: Final = Path("/run/secrets")
"""Where containers find secrets: a file with the name of a variable contains its value."""
_OF_OTHERS: Final = {"OTEL_EXPORTER_OTLP_ENDPOINT": "otlp_endpoint"}
"""Variables of other projects, and the settings that they give where our own variables do not."""
READ_ELSEWHERE: Final = (f"{PREFIX}PLANS", f"{PREFIX}DEVICES")
"""Variables of ours that are no settings here: `torch.choosing.plans` reads the first, compose.yaml the other."""
_RATE_PER_S: Final = 100.0
"""The rate of one caller beyond loopback: a page with its parts is ten requests, a scrape of Prometheus one in 15 s."""
_ON: Final = ("1", "true", "yes", "on")
_OFF: Final = ("0", "false", "no", "off")

_SOME_OF_COMMAS: Final = r"^\Z|[^,\s]"
_SOME_OF_SEMICOLONS: Final = r"^\Z|[^;\s]"
"""An empty text, or a list with something in it: a list of nothing is a mistake, and would allow what nobody meant."""

Seconds = Annotated[float, Meta(gt=0, le=30 * 86_400.0)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting; a variable's name is ``CONV_ADVISOR_`` and the field's name in capitals.

    A plain value: `load_settings` reads and checks the environment.
    """

    home: Annotated[
        Path, Meta(description="Folder for everything that is written: the database and trained models.")
    ] = field(default_factory=lambda: user_data_path("conv-advisor", appauthor=False))
    database_url: Annotated[
        str,
        Meta(
            pattern=r"^((sqlite|postgres|postgresql)(\+[a-z0-9]+)?://.*)?\Z",
            title="postgresql://user@host/name, or sqlite:///path",
            description="URL of the store, such as postgresql://user@host/name; empty: a SQLite file in home.",
        ),
    ] = field(default="", repr=False)
    device: Annotated[
        str,
        Meta(
            pattern=r"^(auto|cpu|cuda:[0-9]{1,3})\Z",
            title="auto, cpu, cuda:0, cuda:1 and so on",
            description="Device of the worker; auto: cuda:0 where it can be used, else cpu.",
        ),
    ] = "auto"
    advice_device: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_.:-]{0,200}\Z",
            title="the id of a device",
            description="Default device of advice, such as nvidia-h200; empty: "
            "the worker's GPU, else the one with the most measurements of those that have a tree.",
        ),
    ] = ""
    scheduler: Annotated[
        str,
        Meta(
            pattern=r"^((tls|tcp)://([a-zA-Z0-9_.-]+|\[[0-9a-fA-F:]+\]):[0-9]{1,5})?\Z",
            title="tls://host:port, or tcp://host:port on loopback",
            description="Address of a Dask scheduler: its workers do the work.",
        ),
    ] = ""
    scheduler_ca_file: Annotated[Path, Meta(description="Authority that signed the cluster's certificates.")] | None = (
        None
    )
    scheduler_cert_file: Annotated[Path, Meta(description="This process's certificate in the cluster.")] | None = None
    scheduler_key_file: Annotated[Path, Meta(description="Key of that certificate.")] | None = None
    scheduler_plain: Annotated[
        bool,
        Meta(
            description="Allow tcp:// beyond loopback: whoever can reach a scheduler or a worker then runs code there."
        ),
    ] = False
    host: Annotated[str, Meta(min_length=1, title="an address", description="Address the service listens on.")] = (
        "127.0.0.1"
    )
    tokens_file: (
        Annotated[
            Path,
            Meta(description="File of accepted tokens, as `conv-advisor token` writes it; changes apply at once."),
        ]
        | None
    ) = None
    tokens: Annotated[
        str,
        Meta(
            pattern=_SOME_OF_SEMICOLONS,
            title="lines as `conv-advisor token` prints them, separated by ;",
            description="The same lines, separated by ;",
        ),
    ] = field(default="", repr=False)
    allowed_hosts: Annotated[
        str,
        Meta(
            pattern=_SOME_OF_COMMAS,
            title="host names separated by commas",
            description="Host names that are accepted, separated by commas: "
            "*.example.org for all below one, * for any; empty: on loopback its own names, beyond it any.",
        ),
    ] = ""
    trusted_proxies: Annotated[
        str,
        Meta(
            pattern=_SOME_OF_COMMAS,
            title="addresses separated by commas",
            description="Addresses whose X-Forwarded-For and -Proto are trusted, separated by commas.",
        ),
    ] = "127.0.0.1"
    tls_certificate: Annotated[Path, Meta(description="PEM file of the HTTPS certificate and its chain.")] | None = None
    tls_key: Annotated[Path, Meta(description="PEM file of its key.")] | None = None
    rate_limit_per_s: (
        Annotated[
            float,
            Meta(
                ge=0,
                le=1000000.0,
                description="Requests a second per token or address; 0: any; unset: any on loopback, 100 beyond it.",
            ),
        ]
        | None
    ) = None
    rate_limit_burst: Annotated[
        int, Meta(ge=1, description="Burst of requests allowed after a pause, if there is a rate limit.")
    ] = 200
    metrics: Annotated[bool, Meta(description="Count requests, and answer GET /metrics.")] = True
    otlp_endpoint: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^/]|\Z)",
            title="an address that begins with http:// or https://",
            description="Collector of traces by OTLP over HTTP, such as http://127.0.0.1:4318; empty: no traces.",
        ),
    ] = ""
    port: Annotated[int, Meta(ge=0, le=65535, description="Port the service listens on; 0: any free one.")] = 8000
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Meta(description="Lowest level that is logged.")
    ] = "info"
    log_format: Annotated[Literal["text", "json"], Meta(description="json: one object per line.")] = "text"
    max_body_bytes: Annotated[int, Meta(ge=1024, description="Largest request body.")] = 256 * 2**20
    max_queue: Annotated[int, Meta(ge=1, description="Jobs that may wait for one worker.")] = 64
    convolution_deadline_s: Annotated[Seconds, Meta(description="A convolution that takes longer is killed.")] = 60.0
    job_deadline_s: Annotated[
        Seconds,
        Meta(
            description="An attempt of a background job that takes longer is killed; what a sweep has measured stays."
        ),
    ] = 21_600.0
    job_lease_s: Annotated[
        float, Meta(ge=1, le=3600, description="Another server takes a job whose server has been silent for so long.")
    ] = 10.0
    start_timeout_s: Annotated[Seconds, Meta(description="Time limit for the start of a worker.")] = 60.0
    workspace_limit_bytes: Annotated[int, Meta(ge=0, description="Scratch memory a variant may use.")] = 2**30

    @property
    def is_local(self) -> bool:
        """Whether the service can be reached only from this machine."""
        return is_loopback(self.host)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names that a Host header may have."""
        names = tuple(name.strip() for name in self.allowed_hosts.split(",") if name.strip())
        if names or not self.is_local:
            return names or (ANY,)
        return (*LOOPBACK, f"[{self.host}]" if ":" in self.host else self.host)

    @property
    def rate_per_s(self) -> float:
        """Requests a second that one caller may make; 0: no limit."""
        if self.rate_limit_per_s is None:
            return 0.0 if self.is_local else _RATE_PER_S
        return self.rate_limit_per_s

    @property
    def store_url(self) -> str:
        """URL of the store: `database_url`, or a SQLite file in `home`."""
        return self.database_url or f"sqlite:///{self.store_file}"

    @property
    def store_file(self) -> Path:
        """The SQLite file of the store, used if `database_url` is empty."""
        return self.home / "conv-advisor.db"

    @property
    def has_store(self) -> bool:
        """Whether there is a store already: commands that only read create none."""
        return bool(self.database_url) or self.store_file.exists()

    @property
    def models_home(self) -> Path:
        """Home of the registry of models, which stores trees trained here in its folder ``models``."""
        return self.home


def load_settings(**overrides: Any) -> Settings:
    """Read the environment and `SECRETS`; the environment overrides `SECRETS`, and an override that is not None both.

    Raises
    ------
    InvalidInput
        Names the variable, its value and what is allowed.
    """
    values = {setting: (name, text) for setting, name, text in (*_from_secrets(), *_from_environment())}
    values |= {setting: (setting, value) for setting, value in overrides.items() if value is not None}
    kinds = get_type_hints(Settings, include_extras=True) if values else {}  # takes longer than all of the rest
    shown = {setting for setting, declared in Settings.__dataclass_fields__.items() if declared.repr}
    return Settings(
        **{
            setting: _checked(name, value, kinds[setting], setting in shown)
            for setting, (name, value) in values.items()
        }
    )


def _checked(name: str, value: Any, kind: Any, is_shown: bool) -> Any:
    """The value of a setting of this kind, from text or another value."""
    try:
        return msgspec.convert(_read(value, kind) if isinstance(value, str) else value, kind)
    except ValueError:  # includes msgspec's own errors
        raise InvalidInput(name, value if is_shown else "not shown", _allowed(kind)) from None


def _read(text: str, kind: Any) -> Any:
    plain = _plain(kind)
    if plain is bool:
        return text.lower() in _ON if text.lower() in (*_ON, *_OFF) else text
    return plain(text) if plain in (int, float, Path) else text


def _allowed(kind: Any) -> str:
    """The allowed values of a setting of this kind, in words."""
    plain, meta = _plain(kind), _meta(kind)
    if get_origin(plain) is Literal:
        return ", ".join(get_args(plain))
    if plain is bool:
        return ", ".join((*_ON, *_OFF))
    if meta is None or meta.title or plain in (str, Path):
        return (meta and meta.title) or ("a path" if plain is Path else "a text")
    least = f"above {meta.gt:g}" if meta.gt is not None else f"from {meta.ge:g}"
    most = "" if meta.le is None else f" to {meta.le:.0f}"
    return f"{'an integer' if plain is int else 'a number'} {least}{most}"


def _plain(kind: Any) -> Any:
    """A kind without None and without bounds."""
    chosen = _without_none(kind)
    return get_args(chosen)[0] if get_origin(chosen) is Annotated else chosen


def _meta(kind: Any) -> Meta | None:
    return next((annotation for annotation in get_args(_without_none(kind))[1:] if isinstance(annotation, Meta)), None)


def _without_none(kind: Any) -> Any:
    is_optional = type(None) in get_args(kind)
    return get_args(kind)[0] if is_optional else kind


def _from_environment() -> Iterator[tuple[str, str, str]]:
    """Setting, variable and value of every variable that sets one; a later entry overrides an earlier one.

    Raises
    ------
    InvalidInput
        A variable has our prefix but names no setting, and is none of `READ_ELSEWHERE`.
    """
    ours = _variables()
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in (*ours, *READ_ELSEWHERE):
            # Never its value: it may be a password under a misspelt name.
            raise InvalidInput(name, "set", f"one of the settings {', '.join(sorted((*ours, *READ_ELSEWHERE)))}")
    for setting_of in (_OF_OTHERS, ours):
        yield from (
            (setting_of[name.upper()], name, value) for name, value in os.environ.items() if name.upper() in setting_of
        )


def _from_secrets() -> Iterator[tuple[str, str, str]]:
    """The same from every file in `SECRETS` that has the name of a variable."""
    files = {file.name.upper(): file for file in SECRETS.iterdir() if file.is_file()} if SECRETS.is_dir() else {}
    for setting_of in (_OF_OTHERS, _variables()):
        yield from ((setting_of[name], name, files[name].read_text().strip()) for name in setting_of if name in files)


def _variables() -> dict[str, str]:
    """The settings by their variables."""
    return {f"{PREFIX}{setting.upper()}": setting for setting in Settings.__dataclass_fields__}
