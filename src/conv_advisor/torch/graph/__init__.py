"""What is read of a graph of PyTorch, and what is changed in it."""
