"""Convolutions with what follows them: our fused variants against compiled PyTorch and cuDNN's fused plans."""
