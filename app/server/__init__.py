"""ASGI around the routes."""
