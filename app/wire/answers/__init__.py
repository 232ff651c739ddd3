"""What is answered, a module for each of `app.routes`: typed dictionaries, and what makes them.

They become JSON as they are, and OpenAPI by their annotations.
"""
