"""Factors and shifts with which the kernels multiply and shift instead of dividing.

Source: Granlund, Montgomery: Division by Invariant Integers using Multiplication, 1994.
"""

from __future__ import annotations


def magic(divisor: int, bits: int) -> int:
    """The multiplier for which ``dividend * multiplier >> bits`` is the quotient of small dividends."""
    return -(-(1 << bits) // divisor)


def division(divisor: int) -> tuple[int, int]:
    """A multiplier and a shift: ``dividend * multiplier >> 32 >> shift`` is the quotient of dividends below 2³¹.

    Zeros for a divisor of 1, for which the kernels skip the division.
    """
    if divisor == 1:
        return 0, 0
    shift = (divisor - 1).bit_length() - 1
    return magic(divisor, 32 + shift), shift


def divider(divisor: int) -> tuple[int, int]:
    """Magic and shift with which division.cuh divides values below 2³¹."""
    is_power_of_2 = divisor & (divisor - 1) == 0  # by which it only shifts
    return (0, divisor.bit_length() - 1) if is_power_of_2 else division(divisor)
