"""im2col, then GEMM by cuBLAS."""
