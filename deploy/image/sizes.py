"""What an image weighs: by layer, and what each layer holds, by package."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deploy.image.buildah import Buildah

LAYERS = {
    "cpu": ("Debian and Python", "packages", "conv-advisor"),
    "gpu": ("Debian and Python", "packages", "CUDA", "conv-advisor"),
}
"""What the Dockerfile copies into each image, from the lowest."""

_SMALL_SHARE = 0.02
"""Packages below this share of their layer are counted together."""
_PACKAGE = re.compile(r"opt/conv-advisor/lib/python3\.\d+/site-packages/(nvidia/\w+/lib/lib[^.]+|nvidia/\w+|[^/]+)")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: its bytes as files and as pulled, and its files' bytes by package."""

    name: str
    file_bytes: int
    pulled_bytes: int
    by_package: Counter[str]


def package_of(path: str) -> str:
    """The package of a file: a folder of site-packages, a CUDA library, the interpreter, or Debian."""
    match = _PACKAGE.match(path.removeprefix("./").removeprefix("/"))
    if match:
        return re.sub(r"[-.](\d.*)?(dist-info|libs)$", "", match[1])
    return "Python" if "python3" in path else "Debian"


def read_layers(buildah: Buildah, image: str) -> list[Layer]:
    """The layers of an image, from the lowest."""
    with tempfile.TemporaryDirectory(prefix="conv-advisor-sizes-") as folder:
        buildah.call("push", "--quiet", image, f"dir:{folder}")
        manifest = json.loads((Path(folder) / "manifest.json").read_text())
        return [
            read_layer(_blob(folder, layer["digest"]), name, layer["size"])
            for layer, name in zip(manifest["layers"], LAYERS[image.rpartition(":")[2]], strict=True)
        ]


def read_layer(path: Path, name: str, pulled_bytes: int) -> Layer:
    by_package: Counter[str] = Counter()
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                by_package[package_of(member.name)] += member.size
    return Layer(name, by_package.total(), pulled_bytes, by_package)


def _blob(folder: str, digest: str) -> Path:
    return Path(folder) / digest.removeprefix("sha256:")


def write_sizes(buildah: Buildah, image: str) -> None:
    """Print an image's table."""
    layers = read_layers(buildah, image)
    total, pulled = sum(layer.file_bytes for layer in layers), sum(layer.pulled_bytes for layer in layers)
    sys.stdout.write(f"\n{image}: {total / 1e6:.1f} MB of files, {pulled / 1e6:.1f} MB to pull\n\n")
    sys.stdout.write("| layer | files, MB | to pull, MB | of which |\n|---|---:|---:|---|\n")
    for layer in layers:
        sizes = f"{layer.file_bytes / 1e6:.1f} | {layer.pulled_bytes / 1e6:.1f}"
        sys.stdout.write(f"| {layer.name} | {sizes} | {_said(layer)} |\n")


def _said(layer: Layer) -> str:
    large = [(name, size) for name, size in layer.by_package.most_common() if size >= _SMALL_SHARE * layer.file_bytes]
    parts = [f"{name.rpartition('/')[2]} {size / 1e6:.1f}" for name, size in large]
    others = len(layer.by_package) - len(large)
    rest = layer.file_bytes - sum(size for _, size in large)
    return ", ".join([*parts, *([f"{others} others {rest / 1e6:.1f}"] if others else [])])
