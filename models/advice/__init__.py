"""From a question to advice: the ranking beside its alternatives, its trade-offs and its neighbours."""
