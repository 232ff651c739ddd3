"""What a running service holds: the store, the models, the workers."""
