"""The ASGI layers around the routes."""
