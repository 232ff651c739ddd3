"""All metrics of one application's GET /metrics, in a registry of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, GCCollector, Info, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder

from conv_advisor.app.observe.collectors import StoredJobs, TokensFile, Workers
from conv_advisor.app.observe.meter import Meter
from conv_advisor.app.observe.regret import LiveRegret
from conv_advisor.data.version import version

if TYPE_CHECKING:
    from conv_advisor.app.guard.tokens import Keyring
    from conv_advisor.app.service.service import Service


class Metrics:
    """The metrics of one application.

    Parameters
    ----------
    meter : Meter
        Counts the requests.
    keyring : Keyring or None
    """

    def __init__(self, meter: Meter, keyring: Keyring | None) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(meter)
        self.registry.register(TokensFile(keyring))
        for process in (ProcessCollector, PlatformCollector, GCCollector):
            process(registry=self.registry)
        Info("conv_advisor", "The service", registry=self.registry).info({"version": version()})

    def watch(self, service: Service) -> None:
        """Also report the metrics of a service, once it has started."""
        for collector in (Workers(service), StoredJobs(service), LiveRegret(service)):
            self.registry.register(collector)

    def write(self, accept: str) -> tuple[bytes, str]:
        """Every metric in the client's preferred form, and its media type. Blocks, because it reads the database."""
        encode, media_type = choose_encoder(accept)
        return encode(self.registry), media_type
