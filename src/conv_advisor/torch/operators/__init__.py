"""The operators that stand for convolutions in a graph, and how Inductor calls them."""
