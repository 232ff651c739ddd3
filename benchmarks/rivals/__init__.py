"""Advice against PyTorch, cuDNN's heuristics and the oracle, layer by layer: what `benchmarks.advice` measures."""
