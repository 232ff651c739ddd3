"""PyTorch: ``torch.compile(model, backend="conv_advisor")``, its convolutions by the fastest variants for their shapes.

Nothing of the service is needed here, and nothing of CUDA before a model on a GPU is compiled.
"""

from conv_advisor.torch.backend import backend
from conv_advisor.torch.folding import refresh

__all__ = ["backend", "refresh"]
