"""PyTorch: convolutions by the fastest variants for their shapes, compiled or not.

``torch.compile(model, backend="conv_advisor")`` works on graphs; `optimize` swaps modules in place, and `restore` swaps
them back; `plan` says what either would do on a GPU. Nothing of the service is needed to run a model, and nothing of
CUDA before one that is on a GPU is compiled.
"""

from conv_advisor.torch.backend import backend
from conv_advisor.torch.graph.refreshing import refresh
from conv_advisor.torch.modules import restore
from conv_advisor.torch.planning import plan
from conv_advisor.torch.swapping import optimize

__all__ = ["backend", "optimize", "plan", "refresh", "restore"]
