"""How good advice is, beside simpler rules and what other libraries do."""
