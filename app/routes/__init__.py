"""The HTTP routes, one module per resource. Each parses, calls one function, and answers."""
