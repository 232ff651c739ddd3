"""What the environment decides, read here and nowhere else; units are in the names."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from data.errors import InvalidInput

PREFIX: Final = "CONV_ADVISOR_"
SECRETS: Final = Path("/run/secrets")
"""Where containers find secrets: a file that is named like a variable holds its value."""
_LONGEST_S: Final = 30 * 86_400.0


class Settings(BaseSettings):
    """Every setting; a variable's name is ``CONV_ADVISOR_`` and the field's name in capitals."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    home: Path = Field(Path("var"), description="Folder of everything that is written: the database, trained models.")
    database_url: str = Field("", description="SQLAlchemy URL of the store; empty: a SQLite file in home.")
    device: str = Field(
        "auto",
        description="Device of the worker: cpu, cuda:0, cuda:1 ...; auto: cuda:0 where it can be used, else cpu.",
    )
    host: str = Field("127.0.0.1", min_length=1, description="Address the service listens on.")
    port: int = Field(8000, ge=0, le=65535, description="Port the service listens on; 0: any free one.")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    max_body_bytes: int = Field(256 * 2**20, ge=1024, description="Longest request body.")
    max_queue: int = Field(64, ge=1, description="Jobs that may wait for one worker.")
    convolution_deadline_s: float = Field(
        60.0, gt=0, le=_LONGEST_S, description="A convolution that overruns it is killed."
    )
    job_deadline_s: float = Field(
        3600.0, gt=0, le=_LONGEST_S, description="A background job that overruns it is killed."
    )
    start_timeout_s: float = Field(60.0, gt=0, le=_LONGEST_S, description="Longest start of a worker.")
    workspace_limit_bytes: int = Field(2**30, ge=0, description="Scratch memory a variant may use.")

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda:\d{1,3}", device, re.ASCII):
            raise ValueError("auto, cpu, cuda:0, cuda:1 and so on")
        return device

    @property
    def store_url(self) -> str:
        """URL of the store: `database_url`, or a SQLite file in `home`."""
        return self.database_url or f"sqlite:///{self.home / 'conv-advisor.db'}"

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
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for name in os.environ:
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            raise InvalidInput(name, os.environ[name], f"one of the settings {', '.join(sorted(known))}")
    try:
        given = {name: value for name, value in overrides.items() if value is not None}
        return Settings(**given | {"_secrets_dir": SECRETS if SECRETS.is_dir() else None})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        named = field if overrides.get(field) is not None else f"{PREFIX}{field.upper()}"
        raise InvalidInput(named, first["input"], first["msg"].removeprefix("Value error, ")) from None
