"""Everything that runs or times one convolution; the only place that touches CUDA."""
