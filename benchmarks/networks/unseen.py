"""Networks that nothing here was tuned on, of plain modules of PyTorch: a decoder of latent diffusion, and a UNet."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

_GROUPS: Final = 32


class Residual(nn.Module):  # type: ignore[misc]  # PyTorch is not followed
    """Two 3×3 convolutions behind group norms, added to the input."""

    def __init__(self, channels_in: int, channels: int) -> None:
        super().__init__()
        self.norm_1, self.conv_1 = nn.GroupNorm(_GROUPS, channels_in), nn.Conv2d(channels_in, channels, 3, padding=1)
        self.norm_2, self.conv_2 = nn.GroupNorm(_GROUPS, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.skip = nn.Identity() if channels == channels_in else nn.Conv2d(channels_in, channels, 1)

    def forward(self, x: Any) -> Any:
        """As `Module` has it."""
        y = self.conv_1(functional.silu(self.norm_1(x)))
        return self.skip(x) + self.conv_2(functional.silu(self.norm_2(y)))


class Attention(nn.Module):  # type: ignore[misc]  # PyTorch is not followed
    """One head over all pixels, by 1×1 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(_GROUPS, channels)
        self.query, self.key, self.value, self.out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Any) -> Any:
        """As `Module` has it."""
        y = self.norm(x)
        heads = (projection(y).flatten(2).transpose(1, 2) for projection in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(*heads)
        return x + self.out(mixed.transpose(1, 2).reshape(x.shape))


class LatentDecoder(nn.Sequential):  # type: ignore[misc]  # PyTorch is not followed
    """From four channels to images of eight times the size, as autoencoders of latent diffusion models decode.

    Source: Rombach et al., High-Resolution Image Synthesis with Latent Diffusion Models, its f = 8 autoencoder.
    """

    def __init__(self) -> None:
        blocks: list[nn.Module] = [nn.Conv2d(4, 512, 3, padding=1), Residual(512, 512), Attention(512)]
        blocks.append(Residual(512, 512))
        channels_in = 512
        for level, channels in enumerate((512, 512, 256, 128)):
            blocks += [Residual(channels_in, channels), Residual(channels, channels), Residual(channels, channels)]
            if level < 3:
                blocks += [nn.Upsample(scale_factor=2.0), nn.Conv2d(channels, channels, 3, padding=1)]
            channels_in = channels
        super().__init__(*blocks, nn.GroupNorm(_GROUPS, 128), nn.SiLU(), nn.Conv2d(128, 3, 3, padding=1))


class UNet(nn.Module):  # type: ignore[misc]  # PyTorch is not followed
    """Five levels of two 3×3 convolutions with batch norms, down and up again.

    Source: Ronneberger, Fischer, Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation; padded.
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(_pair(*channels) for channels in zip((3, *widths), widths, strict=False))
        self.raise_ = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[-2::-1])
        self.up = nn.ModuleList(_pair(2 * width, width) for width in widths[-2::-1])
        self.out = nn.Conv2d(64, 2, 1)

    def forward(self, x: Any) -> Any:
        """As `Module` has it."""
        left = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            left.append(x)
        for skipped, upward, block in zip(left[-2::-1], self.raise_, self.up, strict=True):
            x = block(torch.cat([skipped, upward(x)], 1))
        return self.out(x)


def _pair(channels_in: int, channels: int) -> nn.Sequential:
    layers = [
        layer
        for begin in (channels_in, channels)
        for layer in (nn.Conv2d(begin, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
    ]
    return nn.Sequential(*layers)


MODELS: Final[dict[str, Any]] = {"latent_decoder": LatentDecoder, "unet": UNet}
SHAPES: Final = {"latent_decoder": (4, 32, 32), "unet": (3, 256, 256)}
"""Channels, rows and columns of an input that is no image of 224×224."""
