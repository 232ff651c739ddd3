"""A process that owns a device, here or on a cluster."""
