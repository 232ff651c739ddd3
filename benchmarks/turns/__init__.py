"""Variants of one layer chosen on one pass and reported from another, in turns, in a process that may go down."""
