"""PyTorch: convolutions by the fastest variants for their shapes, compiled or not.

``torch.compile(model, backend="conv_advisor")`` works on graphs; `optimize` swaps modules in place, and `restore` swaps
them back. Nothing of the service is needed here, and nothing of CUDA before a model on a GPU is compiled.
"""

from conv_advisor.torch.backend import backend
from conv_advisor.torch.folding import refresh
from conv_advisor.torch.modules import restore
from conv_advisor.torch.swapping import optimize

__all__ = ["backend", "optimize", "refresh", "restore"]
