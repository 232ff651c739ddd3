"""The facts: problems, measurements, and where they are kept."""
