"""Winograd with tiles of 4x4 outputs, on tensor cores by three products of split operands."""
