"""A whole network: its convolutions, the layout of each, and what that gains."""
