"""A tree made to fit another GPU by a few layers measured there."""
