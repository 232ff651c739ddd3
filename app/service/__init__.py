"""The state of a running service: the store, the models, the workers."""
