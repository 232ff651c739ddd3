"""The guidelines of the seed papers as functions, and how they fare on what was measured; our own beside them."""
