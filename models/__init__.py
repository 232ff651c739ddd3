"""From measurements to advice."""
