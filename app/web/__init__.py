"""The page: what people see in a browser, rendered here and nowhere else; no script of others, no build step."""
