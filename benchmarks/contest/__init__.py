"""Our own kernels against the best of cuDNN, layer by layer: what `benchmarks.kernels` measures and prints."""
