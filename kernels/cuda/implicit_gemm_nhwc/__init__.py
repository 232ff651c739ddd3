"""The implicit GEMM with channels innermost, packed before where they are not."""
