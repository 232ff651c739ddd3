"""The address of a cluster's scheduler, and the certificates that admit to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from conv_advisor.app.hosts import is_loopback
from conv_advisor.app.settings import PREFIX, Settings
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.extras import require

if TYPE_CHECKING:
    from distributed.security import Security

_FILES: Final = ("scheduler_ca_file", "scheduler_cert_file", "scheduler_key_file")


@dataclass(frozen=True)
class Link:
    """A scheduler's address, and the files for TLS.

    Parameters
    ----------
    address : str
        ``tls://host:port`` or ``tcp://host:port``.
    ca_file, cert_file, key_file : Path, optional
        PEM files. Both sides of a connection show a certificate of this authority: without one, a process can neither
        send work nor do it.
    """

    address: str
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def protocol(self) -> str:
        """``tls`` or ``tcp``."""
        return urlsplit(self.address).scheme

    @property
    def host(self) -> str:
        """The scheduler's host."""
        return urlsplit(self.address).hostname or ""

    @property
    def port(self) -> int:
        """The scheduler's port."""
        return urlsplit(self.address).port or 0

    def security(self) -> Security:
        """The link's TLS settings for Dask."""
        from distributed.security import Security

        if self.protocol == "tcp":
            return Security()
        files: dict[str, Any] = {"tls_ca_file": str(self.ca_file)}
        for role in ("client", "scheduler", "worker"):
            files |= {f"tls_{role}_cert": str(self.cert_file), f"tls_{role}_key": str(self.key_file)}
        return Security(require_encryption=True, **files)


def link_from(settings: Settings) -> Link:
    """The link that the settings describe.

    Raises
    ------
    InvalidInput
        Naming the setting that is missing, cannot be read, or is not safe.
    NotInstalled
    """
    address = settings.scheduler
    if not address:
        raise InvalidInput("scheduler", address, "tls://host:port, or tcp://host:port on loopback")
    require("distributed")
    link = Link(address, settings.scheduler_ca_file, settings.scheduler_cert_file, settings.scheduler_key_file)
    if link.protocol == "tls":
        _check_files(settings)
    elif not (settings.scheduler_plain or is_loopback(link.host)):
        allowed = (
            f"tls:// beyond loopback; {PREFIX}SCHEDULER_PLAIN=true where nobody else can reach it, as who can runs code"
        )
        raise InvalidInput("scheduler", address, allowed)
    return link


def _check_files(settings: Settings) -> None:
    for name in _FILES:
        path = getattr(settings, name)
        variable = f"{PREFIX}{name.upper()}"
        if path is None:
            raise InvalidInput(
                variable, "", f"a PEM file: {settings.scheduler} needs an authority, a certificate and its key"
            )
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidInput(variable, str(path), f"a file that can be read ({error.strerror})") from None
        if b"-----BEGIN " not in content:
            raise InvalidInput(variable, str(path), "a PEM file")
