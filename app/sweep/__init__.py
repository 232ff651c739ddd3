"""Sweeps: measuring many problems on many workers."""
