"""Winograd F(2x2,3x3), fused and non-fused."""
