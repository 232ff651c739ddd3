"""What families share: launches, copies, clusters, fragments, GEMM by cuBLAS, arithmetic."""
