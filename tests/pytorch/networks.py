"""Small networks of the usual kinds, with batch norms that have run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """Convolution, batch norm, ReLU in place, twice, around a sum in place; and a strided projection."""

    def __init__(self, depth: int, filters: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(depth, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.relu = nn.ReLU(inplace=True)
        self.project = None
        if stride != 1 or depth != filters:
            self.project = nn.Sequential(nn.Conv2d(depth, filters, 1, stride, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: Any) -> Any:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x if self.project is None else self.project(x)
        return self.relu(y)


class Dense(nn.Module):
    """Batch norm and ReLU before each convolution, and everything ahead put side by side."""

    def __init__(self, depth: int, growth: int, layers: int) -> None:
        super().__init__()
        sizes = [depth + growth * layer for layer in range(layers)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes)
        self.convs = nn.ModuleList(nn.Conv2d(size, growth, 3, padding=1, bias=False) for size in sizes)

    def forward(self, x: Any) -> Any:
        parts = [x]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            parts.append(conv(torch.relu(norm(torch.cat(parts, 1)))))
        return torch.cat(parts, 1)


class Bottlenecks(nn.Module):
    """A block of a DenseNet and a transition behind it: batch norm, ReLU, 1x1 to twice what a layer adds, then 3x3."""

    def __init__(self, depth: int, growth: int, layers: int, stride: int = 1) -> None:
        super().__init__()
        sizes = [depth + growth * layer for layer in range(layers + 1)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(size) for size in sizes)
        self.squeezes = nn.ModuleList(
            nn.Sequential(nn.Conv2d(size, 2 * growth, 1, bias=False), nn.BatchNorm2d(2 * growth), nn.ReLU())
            for size in sizes[:-1]
        )
        self.convs = nn.ModuleList(nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False) for _ in range(layers))
        self.transition = nn.Conv2d(sizes[-1], 2 * growth, 1, stride=stride, bias=False)

    def forward(self, x: Any) -> Any:
        parts = [functional.max_pool2d(x, 2)]
        for norm, squeeze, conv in zip(self.norms, self.squeezes, self.convs, strict=False):
            parts.append(conv(squeeze(functional.relu(norm(torch.cat(parts, 1)), inplace=True))))
        y = self.transition(functional.relu(self.norms[-1](torch.cat(parts, 1))))
        return functional.avg_pool2d(y, 2)


class PreActivated(nn.Module):
    """A block of a ResNet that begins with a batch norm and a ReLU, read by two convolutions."""

    def __init__(self, depth: int, filters: int) -> None:
        super().__init__()
        self.ahead, self.norm = nn.Conv2d(depth, depth, 3, padding=1), nn.BatchNorm2d(depth)
        self.left, self.right = nn.Conv2d(depth, filters, 1), nn.Conv2d(depth, filters, 1, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.ahead(x) + x
        y = functional.relu(self.norm(x))
        return self.left(y) + self.right(y), x.mean()


class Fire(nn.Module):
    """SqueezeNet's: 1x1, then 1x1 and 3x3 side by side, all with bias."""

    def __init__(self, depth: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(depth, squeezed, 1)
        self.left = nn.Conv2d(squeezed, expanded, 1)
        self.right = nn.Conv2d(squeezed, expanded, 3, padding="same")

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.left(x)), torch.relu(self.right(x))], 1)


class Separable(nn.Module):
    """MobileNet's: 1x1, depthwise, 1x1, with hard swish, and squeeze and excitation."""

    def __init__(self, depth: int, inner: int) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(depth, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.Hardswish())
        self.depthwise = nn.Conv2d(inner, inner, 5, padding=2, groups=inner, bias=False)
        self.norm = nn.BatchNorm2d(inner)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, inner, 1), nn.Hardsigmoid())
        self.reduce = nn.Conv2d(inner, depth, 1)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.depthwise(self.expand(x))))
        return x + self.reduce(y * self.gate(y))


class FrozenBatchNorm(nn.Module):
    """torchvision's FrozenBatchNorm2d, whose buffers never train; or detectron2's, which reshapes and casts late."""

    def __init__(self, channels: int, is_reshaped_late: bool = False) -> None:
        super().__init__()
        self.eps, self.is_reshaped_late = 1e-5, is_reshaped_late
        generator = torch.Generator().manual_seed(channels)
        for name in ("weight", "bias", "running_mean", "running_var"):
            values = torch.randn(channels, generator=generator)
            self.register_buffer(name, values if name in ("bias", "running_mean") else values.square() + 0.5)

    def forward(self, x: Any) -> Any:
        if self.is_reshaped_late:
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            bias = self.bias - self.running_mean * scale
            scale, bias = (values.reshape(1, -1, 1, 1).to(x.dtype) for values in (scale, bias))
            return x * scale + bias
        weight, shift, mean, variance = (
            values.reshape(1, -1, 1, 1) for values in (self.weight, self.bias, self.running_mean, self.running_var)
        )
        scale = weight * (variance + self.eps).rsqrt()
        bias = shift - mean * scale
        return x * scale + bias


class SharedWeight(nn.Module):
    """One convolution used twice, each time before another batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)
        self.first, self.second = nn.BatchNorm2d(8), nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        return self.second(self.conv(torch.relu(self.first(self.conv(x)))))


class TwoReaders(nn.Module):
    """A batch norm and a sum read what a convolution returns: the batch norm must not be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return y + self.norm(y)


class Mutating(nn.Module):
    """Inputs and outputs of convolutions change in place around them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        x.relu_()
        y[:, :4] *= 2
        y.add_(x)
        return torch.relu_(self.norm(y)) + self.conv(x)


class Endings(nn.Module):
    """Convolutions that end in every way with one activation: bare, with bias, and with a residual on either side."""

    def __init__(self, activate: Callable[[Any], Any], **geometry: Any) -> None:
        super().__init__()
        self.activate = activate
        self.bare = nn.Conv2d(16, 16, 3, bias=False, **({"padding": 1} | geometry))
        self.biased, self.before, self.behind = (nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: Any) -> Any:
        first = self.activate(self.bare(x))
        second = self.activate(self.biased(first))
        third = self.activate(self.before(second) + first)
        return self.activate(second + self.behind(third))

    @staticmethod
    def operators(activation: str) -> list[str]:
        """The operators that its convolutions become where all that follows ends in them."""
        return ["conv2d_v1" if activation == "none" else "conv2d_ending_v1", *["conv2d_ending_v1"] * 3]


def resnet() -> nn.Module:
    """A stem and three residual blocks."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
    return nn.Sequential(stem, nn.MaxPool2d(3, 2, 1), Residual(8, 8), Residual(8, 16, 2), Residual(16, 16))


def every_kind() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Networks by name, each with the shape of its input."""
    networks = {
        "resnet": (resnet(), (2, 3, 33, 32)),
        "densenet": (Dense(8, 4, 3), (2, 8, 9, 10)),
        "squeezenet": (nn.Sequential(nn.Conv2d(3, 8, 3, 2), Fire(8, 4, 8)), (2, 3, 17, 16)),
        "mobilenet": (Separable(8, 16), (2, 8, 7, 9)),
        "shared weight": (SharedWeight(), (2, 8, 6, 6)),
        "two readers": (TwoReaders(), (2, 8, 6, 6)),
        "mutating": (Mutating(), (2, 8, 6, 6)),
    }
    return {name: (settle(network, shape), shape) for name, (network, shape) in networks.items()}


def settle(network: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """Give every batch norm statistics of its own, and put the network into evaluation."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.copy_(torch.randn(module.num_features, generator=generator))
                module.running_var.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
                module.weight.copy_(torch.rand(module.num_features, generator=generator) + 0.5)
                module.bias.copy_(torch.randn(module.num_features, generator=generator))
    return network.eval()


class Expanding(torch.nn.Module):
    """A convolution, two that read it and are concatenated, and one that reads these."""

    def __init__(self, filters: tuple[int, ...] = (8, 12), joined: Any = None, channels: int = 8) -> None:
        super().__init__()
        self.squeeze = torch.nn.Conv2d(channels, channels // 2, 1)
        self.expand = torch.nn.ModuleList(torch.nn.Conv2d(channels // 2, k, 3, padding=1) for k in filters)
        self.last = torch.nn.Conv2d(sum(filters), 4, 1)
        self.joined = joined or (lambda parts: torch.cat(parts, 1))

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.squeeze(x))
        return self.last(self.joined([torch.relu(expand(x)) for expand in self.expand]))
