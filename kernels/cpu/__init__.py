"""Convolution on the local CPU: direct, GEMM, FFT and Winograd, each serial and parallel."""
