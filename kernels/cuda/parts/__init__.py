"""Code shared by kernel families: launches, copies, clusters, fragments, GEMM by cuBLAS, arithmetic."""
