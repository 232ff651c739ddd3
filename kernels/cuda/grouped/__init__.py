"""Groups of several channels on tensor cores."""
