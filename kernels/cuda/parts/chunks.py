"""Images per chunk, where all of them together would exceed the workspace limit."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from conv_advisor.data.errors import WorkspaceExceeded
from conv_advisor.data.problem import MAX_ELEMENTS

BLAS_WORKSPACE_BYTES: Final = 32 * 1024 * 1024
"""Workspace that cuBLAS recommends for Hopper; provided so that cuBLAS allocates nothing during graph capture."""


@dataclass(frozen=True)
class ChunkPlan:
    """A chunk of images, and the workspace it takes.

    Parameters
    ----------
    images : int
    workspace_bytes : int
    """

    images: int
    workspace_bytes: int


def plan_images(images: int, fixed_bytes: int, image_bytes: int, image_elements: int, limit_bytes: int) -> ChunkPlan:
    check_limit(fixed_bytes + image_bytes, limit_bytes)
    fitting = min(images, (limit_bytes - fixed_bytes) // image_bytes, max(1, MAX_ELEMENTS // image_elements))
    # Equal chunks: fewer images at a time than would fit, but no small last chunk.
    fitting = ceil(images / ceil(images / fitting))
    return ChunkPlan(fitting, fixed_bytes + fitting * image_bytes)


def check_limit(needed_bytes: int, limit_bytes: int) -> None:
    if needed_bytes > limit_bytes:
        raise WorkspaceExceeded(needed_bytes, limit_bytes)
