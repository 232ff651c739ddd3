"""Traces of requests by FastAPI's own OpenTelemetry support: off, and free, until a collector is named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fastapi.telemetry import TelemetryConfig

from conv_advisor.data.extras import require
from conv_advisor.data.version import version

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

OFF: Final[TelemetryConfig] = {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
"""Does nothing for a request."""


def provider(endpoint: str) -> TracerProvider:
    """A provider that makes spans and sends them to a collector in the background.

    OpenTelemetry's own variables set the rest: OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS ...

    Parameters
    ----------
    endpoint : str
        The address for OTLP over HTTP, without its ``/v1/traces``.

    Raises
    ------
    NotInstalled
    """
    require("opentelemetry.sdk")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return provider_of(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))


def provider_of(exporter: SpanExporter) -> TracerProvider:
    """A provider that makes spans and passes them to this exporter in the background."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.version": version()})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):  # no variable names it
        resource = resource.merge(Resource({"service.name": "conv-advisor"}))
    tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    tracer_provider.add_span_processor(BatchSpanProcessor(exporter))
    return tracer_provider


def config(tracer_provider: TracerProvider | None) -> TelemetryConfig:
    """Telemetry options of `FastAPI`: only spans of requests, since metrics and logs are handled elsewhere."""
    if tracer_provider is None:
        return OFF
    on: TelemetryConfig = {**OFF, "tracing": True, "tracer_provider": tracer_provider, "operation_spans": False}
    return on
