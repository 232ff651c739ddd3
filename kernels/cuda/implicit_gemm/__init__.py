"""The implicit GEMM in one launch: by FFMA, and on tensor cores where those are not enough."""
