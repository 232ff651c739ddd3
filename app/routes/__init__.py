"""The routes, one module a resource: each parses, calls one function, and answers."""
