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
"""Nothing is looked up for a request."""


def provider(endpoint: str) -> TracerProvider:
    """What makes spans and sends them to a collector in the background.

    OpenTelemetry's own variables say the rest: OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS ...

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
    """What makes spans and gives them to this exporter in the background."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.version": version()})
    if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):  # no variable names it
        resource = resource.merge(Resource({"service.name": "conv-advisor"}))
    made = TracerProvider(resource=resource, shutdown_on_exit=False)
    made.add_span_processor(BatchSpanProcessor(exporter))
    return made


def config(made: TracerProvider | None) -> TelemetryConfig:
    """What `FastAPI` takes: spans of requests alone; metrics are Prometheus's, and logs have a place of their own."""
    if made is None:
        return OFF
    on: TelemetryConfig = {**OFF, "tracing": True, "tracer_provider": made, "operation_spans": False}
    return on
