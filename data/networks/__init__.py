"""The layers of published networks and experiments, one CSV each; every row names its source.

The seed papers list only some layers of their networks: without stems, strides and repeat counts. Those networks
have a second CSV, in the folder ``whole``, with every convolution that one image passes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from conv_advisor.data.errors import InvalidProblem, UnknownNetwork
from conv_advisor.data.problem import ConvProblem, DType, Layout

SEED_BATCHES: Final = (1, 8, 16, 32, 64, 128, 256)
"""The batches that cuConv (arXiv:2103.16234) measured."""

GROUPS: Final = {
    "seeds": ("alexnet", "googlenet", "squeezenet", "resnet50", "vgg19"),
    "fourth-seed": ("input-layers", "feature-layers", "filter-sweep"),
    "more-networks": (
        *("cspresnet50", "darknet53", "ese_vovnet39b", "ghostnet_100", "hardcorenas_a", "hrnet_w18", "mnasnet1_0"),
        *("mobilenet_v2", "nf_resnet50", "regnetx_032", "res2net50_26w_4s", "resnetv2_50", "selecsls42", "vovnet39a"),
    ),
    "held-out": (
        *("convnext_tiny", "densenet121", "dla34", "efficientnet_b0", "inception_v3", "mobilenet_v3_large"),
        *("regnet_y_400mf", "repvgg_a2", "resnext50_32x4d", "shufflenet_v2_x1_0", "wide_resnet50_2", "xception41"),
    ),
    "beyond-classifiers": (
        *("stable_diffusion_unet", "retinanet_resnet50_fpn", "deeplabv3_resnet50", "edsr", "wav2vec2_base"),
        *("conv_tasnet", "raft_large", "alphago_zero", "patch_embeddings"),
    ),
    "beyond-held-out": (
        *("stable_diffusion_decoder", "ssd300_vgg16", "unet", "esrgan", "hifigan", "whisper_small", "flownet_s"),
        *("atari_agents", "dense_patch_embeddings"),
    ),
}
"""Names that stand for several: the networks of cuConv and of Jordà et al. (IEEE Access 2019), the experiments of the
parallel-processing study of direct, FFT and Winograd convolution (Univ. of Oregon 2019), networks of torchvision and
timm to train on, and others of those that advice is judged by and nothing is ever trained on; then networks that
classify no images (diffusion, detection, segmentation, super-resolution, speech, audio, optical flow, games, patch
embeddings), half of them to train on and half to judge by."""

HELD_OUT: Final = "held-out"
BEYOND_HELD_OUT: Final = "beyond-held-out"
NEVER_TRAINED: Final = (HELD_OUT, BEYOND_HELD_OUT)
"""The groups whose layers judge advice: `models.training.train` refuses to learn from them, whoever measured them."""

EXPERIMENTS: Final = "fourth-seed"
"""The group whose members are experiments, not networks."""

_FOLDER: Final = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a network.

    Parameters
    ----------
    problem : ConvProblem
        The layer at batch 1, in float32 and NCHW.
    source : str
        The paper or the library, and the layer's name or place in it.
    count : int
        How often one image passes such a layer; 1 where the source does not say.
    """

    problem: ConvProblem
    source: str
    count: int = 1


def names() -> list[str]:
    """Every name that has layers: the seed networks, the experiments, then the groups."""
    return [*(name for members in GROUPS.values() for name in members), *GROUPS]


def layers(name: str) -> list[Layer]:
    """The distinct layers of a network, an experiment or a group, in the order of the papers.

    Raises
    ------
    UnknownNetwork
    """
    if name not in names():
        raise UnknownNetwork(name, names())
    distinct: dict[ConvProblem, Layer] = {}
    for member in GROUPS.get(name, (name,)):
        for layer in _read(member):
            distinct.setdefault(layer.problem, layer)
    return list(distinct.values())


def is_network(name: str) -> bool:
    """Whether a name is that of one network, and not of an experiment or a group."""
    return any(name in members for group, members in GROUPS.items() if group != EXPERIMENTS)


def whole(name: str) -> list[Layer]:
    """Every distinct convolution of a network, in the order that an image meets them, with how often it does.

    For the seed networks these are more than `layers`, which has only those that their papers measured: stems, strides
    and projections are here too.

    Raises
    ------
    UnknownNetwork
        No network has that name; experiments and groups have no whole.
    """
    if not is_network(name):
        raise UnknownNetwork(name, [known for known in names() if is_network(known)])
    return list(_read(f"whole/{name}" if name in GROUPS["seeds"] else name))


@cache
def held_out_layers() -> frozenset[ConvProblem]:
    """The layers, at batch 1, in float32 and NCHW, of groups of `NEVER_TRAINED` that no group to train on has."""
    known, judging = (
        {layer.problem for name in group for layer in layers(name)}
        for group in (("seeds", "more-networks", "beyond-classifiers"), NEVER_TRAINED)
    )
    return frozenset(judging - known)


def problems(
    name: str,
    *,
    batches: Iterable[int] | None = None,
    dtypes: Iterable[DType] = (DType.FLOAT32,),
    layouts: Iterable[Layout] = (Layout.NCHW,),
) -> list[ConvProblem]:
    """Every layer of a network, an experiment or a group, in every batch, dtype and layout.

    Parameters
    ----------
    name : str
    batches : iterable of int, optional
        By default those of the source: `SEED_BATCHES` for networks, without those in which a layer would be too large,
        and one image for the experiments.

    Raises
    ------
    UnknownNetwork, InvalidProblem
    """
    is_experiment = name == EXPERIMENTS or name in GROUPS[EXPERIMENTS]
    batch_sizes = tuple(batches) if batches is not None else (1,) if is_experiment else SEED_BATCHES
    dtypes, layouts = tuple(dtypes), tuple(layouts)
    return [
        replace(batch, dtype=dtype, layout=layout)
        for layer in layers(name)
        for batch in _batched(layer.problem, batch_sizes, may_leave_out=batches is None)
        for dtype in dtypes
        for layout in layouts
    ]


def _batched(problem: ConvProblem, batches: Iterable[int], *, may_leave_out: bool) -> Iterator[ConvProblem]:
    for n in batches:
        try:
            yield replace(problem, n=n)
        except InvalidProblem:
            if not may_leave_out:
                raise


@cache
def _read(name: str) -> tuple[Layer, ...]:
    with (_FOLDER / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return tuple(_layer(row) for row in csv.DictReader(file))


def _layer(row: dict[str, str]) -> Layer:
    sizes: dict[str, Any] = {field: int(text) for field, text in row.items() if field not in ("source", "count")}
    return Layer(ConvProblem(n=1, **sizes), row["source"], int(row.get("count", 1)))
