"""FFT by cuFFT around our own product."""
