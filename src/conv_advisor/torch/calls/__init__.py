"""One convolution on PyTorch's tensors: the problem that a call is, what runs it, its time and its error."""
