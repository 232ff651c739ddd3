"""Workers: processes that own a device, here or on a cluster."""
