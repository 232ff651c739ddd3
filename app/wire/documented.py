"""The OpenAPI description of bodies that routes read by hand."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

REFERENCE: Final = "#/components/schemas/{model}"
"""Reference to the schema of a model in the document."""


def body_of(model: type[BaseModel], *binary: str) -> dict[str, Any]:
    """The request body of a route: JSON of this model, or any of these binary media types."""
    content: dict[str, Any] = {"application/json": {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}}
    content |= {media_type: {"schema": {"type": "string", "format": "binary"}} for media_type in binary}
    return {"requestBody": {"required": True, "content": content}}
