"""One convolution for a request."""
