"""Running one convolution for a request."""
