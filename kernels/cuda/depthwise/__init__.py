"""Depthwise convolutions: each channel has filters of its own."""
