"""The client: how a Python program asks a server, with a typed method per request, and retries."""
