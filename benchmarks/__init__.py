"""Comparisons, each printing one table; see README.md."""
