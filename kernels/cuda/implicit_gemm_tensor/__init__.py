"""The implicit GEMM for small batches on tensor cores, of windows of x in shared memory."""
