"""Many problems over many workers."""
