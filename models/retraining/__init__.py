"""A newly trained tree against the one in use."""
