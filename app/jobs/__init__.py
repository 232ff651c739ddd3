"""Background jobs: work that outlives its request."""
