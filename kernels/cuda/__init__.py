"""Our own CUDA kernels, compiled at run time, and their launchers."""
