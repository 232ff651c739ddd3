"""What the routes share: the service that the application holds."""

from __future__ import annotations

from fastapi import Request

from conv_advisor.app.service.service import Service


def service_of(request: Request) -> Service:
    """The service behind this application."""
    service: Service = request.app.state.service
    return service
