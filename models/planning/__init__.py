"""Plans of whole networks: the convolutions, the layout of each, and the gain."""
