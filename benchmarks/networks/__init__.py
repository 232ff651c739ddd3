"""Whole networks: PyTorch's modes against the backend of conv_advisor.torch."""
