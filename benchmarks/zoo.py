"""The convolution layers of the models of timm and torchvision, as a list that a sweep takes.

    python -m benchmarks.zoo > zoo.txt
    conv-advisor sweep --networks "" --problems zoo.txt --no-picks ...

A line is a layer at batch 1, and after a ``#`` how many models have it, those of most models first. Models run on
tensors without data, so nothing is downloaded and no GPU is needed; it takes some minutes. Families of the networks
that advice is judged by are left out with all their members, so that what is trained on the list cannot know them.
Needs torch, timm and torchvision, which this project does not install: pip install torch timm torchvision.
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from benchmarks.options import say
from conv_advisor.data.errors import InvalidProblem
from conv_advisor.data.networks import held_out_layers
from conv_advisor.data.problem import ConvProblem

JUDGES: Final = re.compile(
    r"convnext|densenet|dla|efficientnet|inception|mobilenetv?_?v?3|regnet_?y|repvgg|resnext|shufflenet|wide_resnet|xception"
)
"""Families of `data.networks.HELD_OUT`, as names of models have them."""

NOT_2D: Final = re.compile(r"r3d|s3d|mc3|mvit|swin3d|raft|detection|rcnn|retinanet|fcos|ssd|segmentation")
"""Models of torchvision that take no image, or several."""

NEEDED: Final = ("torch", "timm", "torchvision")
"""Packages that `make` does not install; the extra ``torch`` has the first."""

Build = Callable[[], tuple[Any, tuple[int, ...]]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list; what could not be built is told beside it. The exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(arguments)
    if missing := [package for package in NEEDED if find_spec(package) is None]:
        parser.error(f"{', '.join(missing)}: not installed, nor by make: pip install {' '.join(missing)}")
    warnings.simplefilter("ignore")  # the models' own; only their shapes are read
    counts: Counter[ConvProblem] = Counter()
    for name, build in models():
        try:
            counts.update(set(layers_of(build)))
        except Exception as error:
            say(f"{name}: {error!r:.100}")
    for problem, count in counts.most_common():
        print(f"{problem.short}  # {count}")
    return 0


def models() -> Iterator[tuple[str, Build]]:
    """Every model that is not left out: its name, and a function that gives it and the shape of its image."""
    timm, torchvision = importlib.import_module("timm"), importlib.import_module("torchvision")

    def of_timm(name: str) -> tuple[Any, tuple[int, ...]]:
        model = timm.create_model(name, pretrained=False)
        return model, tuple(model.default_cfg.get("input_size", (3, 224, 224)))

    def of_torchvision(name: str) -> tuple[Any, tuple[int, ...]]:
        return torchvision.models.get_model(name, weights=None), (3, 224, 224)

    for name in timm.list_models():
        if not JUDGES.search(name):
            yield name, partial(of_timm, name)
    for name in torchvision.models.list_models():
        if not JUDGES.search(name) and not NOT_2D.search(name):
            yield name, partial(of_torchvision, name)


def layers_of(build: Build) -> list[ConvProblem]:
    """The two-dimensional convolutions that a model runs on one image, without those that judge advice."""
    torch = importlib.import_module("torch")
    layers: list[ConvProblem] = []

    def note(module: Any, inputs: tuple[Any, ...], _output: Any) -> None:
        if inputs[0].dim() == 4:
            layers.extend(problem_of(module, inputs[0].shape[2], inputs[0].shape[3]))

    with torch.device("meta"), torch.no_grad():
        model, shape = build()
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.register_forward_hook(note)
        model.eval()(torch.zeros(1, *shape))
    return layers


def problem_of(module: Any, h: int, w: int) -> list[ConvProblem]:
    """A ``torch.nn.Conv2d`` on a plane, as a problem; none where it is no valid one, or judges advice."""
    (r, s), (stride_h, stride_w), (dilation_h, dilation_w) = module.kernel_size, module.stride, module.dilation
    padding = {"same": (dilation_h * (r - 1) // 2, dilation_w * (s - 1) // 2), "valid": (0, 0)}
    pad_h, pad_w = padding[module.padding] if isinstance(module.padding, str) else module.padding
    try:
        problem = ConvProblem(
            n=1,
            c=module.in_channels,
            h=h,
            w=w,
            k=module.out_channels,
            r=r,
            s=s,
            stride_h=stride_h,
            stride_w=stride_w,
            pad_h=pad_h,
            pad_w=pad_w,
            dilation_h=dilation_h,
            dilation_w=dilation_w,
            groups=module.groups,
        )
    except InvalidProblem:
        return []
    return [] if problem in held_out_layers() else [problem]


if __name__ == "__main__":
    sys.exit(main())
