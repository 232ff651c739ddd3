"""From a leaf and what was measured to the variants that may run a problem, in order."""
