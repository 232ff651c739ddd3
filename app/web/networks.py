"""The view of networks and experiments: their titles, their groups, and advice on each layer of one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from typing import Final

from conv_advisor.app.advice.advise import advise
from conv_advisor.app.advice.limits import Limits
from conv_advisor.app.service.service import Service
from conv_advisor.app.web.against import TotalAgainst, totals_against
from conv_advisor.app.web.forms import address, member
from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem, DType, Layout
from conv_advisor.models.advice.advice import Advice
from conv_advisor.models.tree.loan import Loan

BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

TITLES: Final = {
    "alexnet": "AlexNet",
    "googlenet": "GoogLeNet",
    "squeezenet": "SqueezeNet 1.0",
    "resnet50": "ResNet-50",
    "vgg19": "VGG19",
    "input-layers": "Input layers",
    "feature-layers": "Feature layers",
    "filter-sweep": "Filter sweep",
    "cspresnet50": "CSPResNet-50",
    "darknet53": "Darknet-53",
    "ese_vovnet39b": "eSE-VoVNet-39b",
    "ghostnet_100": "GhostNet 1.0",
    "hardcorenas_a": "HardCoRe-NAS A",
    "hrnet_w18": "HRNet-W18",
    "mnasnet1_0": "MNASNet 1.0",
    "mobilenet_v2": "MobileNetV2",
    "nf_resnet50": "NF-ResNet-50",
    "regnetx_032": "RegNetX-3.2GF",
    "res2net50_26w_4s": "Res2Net-50 26w 4s",
    "resnetv2_50": "ResNetV2-50",
    "selecsls42": "SelecSLS-42",
    "vovnet39a": "VoVNet-39a",
    "convnext_tiny": "ConvNeXt-T",
    "densenet121": "DenseNet-121",
    "dla34": "DLA-34",
    "efficientnet_b0": "EfficientNet-B0",
    "inception_v3": "Inception v3",
    "mobilenet_v3_large": "MobileNetV3-L",
    "regnet_y_400mf": "RegNetY-400MF",
    "repvgg_a2": "RepVGG-A2",
    "resnext50_32x4d": "ResNeXt-50 32x4d",
    "shufflenet_v2_x1_0": "ShuffleNetV2 1.0",
    "wide_resnet50_2": "Wide ResNet-50-2",
    "xception41": "Xception-41",
    "stable_diffusion_unet": "Stable Diffusion, UNet",
    "retinanet_resnet50_fpn": "RetinaNet, ResNet-50 FPN",
    "deeplabv3_resnet50": "DeepLabV3, ResNet-50",
    "edsr": "EDSR",
    "wav2vec2_base": "wav2vec 2.0 base",
    "conv_tasnet": "Conv-TasNet",
    "raft_large": "RAFT large",
    "alphago_zero": "AlphaGo Zero",
    "patch_embeddings": "Patch embeddings",
    "stable_diffusion_decoder": "Stable Diffusion, decoder",
    "ssd300_vgg16": "SSD300, VGG-16",
    "unet": "U-Net",
    "esrgan": "ESRGAN",
    "hifigan": "HiFi-GAN",
    "whisper_small": "Whisper small",
    "flownet_s": "FlowNetS",
    "atari_agents": "DQN and MuZero, Atari",
    "dense_patch_embeddings": "Patch embeddings, dense",
    "seeds": "All five networks",
    "fourth-seed": "All experiments",
    "more-networks": "All networks to train on",
    "held-out": "All networks to judge by",
    "beyond-classifiers": "All of these to train on",
    "beyond-held-out": "All of these to judge by",
}

GROUP_TITLES: Final = {
    "seeds": "",
    "fourth-seed": "Experiments",
    "more-networks": "More to train on",
    "held-out": "Never trained on",
    "beyond-classifiers": "Beyond classifiers",
    "beyond-held-out": "Beyond classifiers, never trained on",
}
"""Headings of the groups; the first group needs none."""


def layers_of(name: str) -> list[networks.Layer]:
    """Every convolution of a network, with how often it occurs; the distinct layers of an experiment or a group.

    Raises
    ------
    UnknownNetwork
    """
    return networks.whole(name) if networks.is_network(name) else networks.layers(name)


@dataclass(frozen=True)
class NetworkGroup:
    """Networks listed together, and the name of the whole group."""

    name: str
    title: str
    n_layers: Mapping[str, int]


@cache
def network_groups() -> tuple[NetworkGroup, ...]:
    """Everything that has layers, in its groups."""
    return tuple(
        NetworkGroup(group, GROUP_TITLES[group], {name: len(layers_of(name)) for name in (*members, group)})
        for group, members in networks.GROUPS.items()
    )


@dataclass(frozen=True)
class NetworkRow:
    """One distinct layer of a network; without advice where nothing is known to run it.

    Parameters
    ----------
    problem : ConvProblem
    count : int
        How often one pass runs it.
    origin : str
        The layer's name or place in the network, with its source where the list has several.
    advice : Advice or None
    total_ms : float
        Time of all its runs in one pass.
    share : float
        Its total in percent of the greatest total of any layer.
    href : str
        Address of the advice on it.
    """

    problem: ConvProblem
    count: int
    origin: str
    advice: Advice | None
    total_ms: float
    share: float
    href: str


@dataclass(frozen=True)
class NetworkView:
    """A network at one batch, precision and layout.

    Parameters
    ----------
    name, title : str
    source : str
        Where all its layers come from; empty where they come from several places.
    is_whole : bool
        Whether it is a network, with every convolution and its count; else a list of layers, each once.
    rows : sequence of NetworkRow
    total_ms : float
        Time of all convolutions, each with its fastest variant.
    flops : int
        Operations of all convolutions.
    against : sequence of TotalAgainst
        The totals of the alternatives.
    n_measured : int
        Layers whose advised time was measured.
    device_id : str
    table_query : str
        Query of the address of its table.
    loan : Loan or None
        The loan, where the tree is another device's.
    """

    name: str
    title: str
    source: str
    is_whole: bool
    rows: Sequence[NetworkRow]
    total_ms: float
    flops: int
    against: Sequence[TotalAgainst]
    n_measured: int
    device_id: str
    table_query: str
    loan: Loan | None

    @property
    def n_runs(self) -> int:
        """Convolutions of one pass."""
        return sum(row.count for row in self.rows)

    @property
    def n_unknown(self) -> int:
        """Layers without advice: they are in no total."""
        return sum(row.advice is None for row in self.rows)


def network_view(service: Service, name: str, values: Mapping[str, str]) -> NetworkView:
    """Advice on every layer of a network.

    Raises
    ------
    UnknownNetwork, InvalidInput, UnknownDevice, ModelRejected, StoreError
    """
    dtype = member(DType, "dtype", values.get("dtype") or DType.FLOAT32)
    layout = member(Layout, "layout", values.get("layout") or Layout.NCHW)
    batch = _batch(values.get("batch") or "1")
    device_id = service.known.asked_id(values.get("device"))
    advisor = service.advisor(device_id)
    layers = layers_of(name)
    problems = [replace(layer.problem, n=batch, dtype=dtype, layout=layout) for layer in layers]
    limit = service.settings.workspace_limit_bytes
    answers = advise(service, advisor, problems, Limits(device_id, limit, is_deterministic=False))
    advices = [answer if isinstance(answer, Advice) else None for answer in answers]
    totals_ms = [
        layer.count * advice.best.time_ms if advice else 0.0 for layer, advice in zip(layers, advices, strict=True)
    ]
    query = {"dtype": dtype, "layout": layout, "device": device_id}
    source = _common_source([layer.source for layer in layers])
    rows = [
        NetworkRow(
            problem=problem,
            count=layer.count,
            origin=layer.source.removeprefix(source).removeprefix(", "),
            advice=advice,
            total_ms=total_ms,
            share=100 * total_ms / (max(totals_ms) or 1.0),
            href=address("/", layer=problem.brief, network=name, **query),
        )
        for problem, layer, advice, total_ms in zip(problems, layers, advices, totals_ms, strict=True)
    ]
    return NetworkView(
        name=name,
        title=TITLES.get(name, name),
        source=source,
        is_whole=networks.is_network(name),
        rows=rows,
        total_ms=sum(totals_ms),
        flops=sum(row.count * row.problem.flops for row in rows),
        against=totals_against(zip((layer.count for layer in layers), advices, strict=True)),
        n_measured=sum(advice is not None and advice.best.source == "measured" for advice in advices),
        device_id=device_id,
        table_query=address("", name=name, batch=batch, **query),
        loan=advisor.loan,
    )


def _common_source(sources: Sequence[str]) -> str:
    """What all sources begin with: the paper, or the library and its network."""
    parts = zip(*(source.split(", ") for source in sources), strict=False)
    return ", ".join(same[0] for same in takewhile(lambda same: len(set(same)) == 1, parts))


def _batch(text_: str) -> int:
    if not (text_.isascii() and text_.isdigit() and 0 < int(text_) <= 2**31 - 1):
        raise InvalidInput("batch", text_, "an integer from 1 to 2147483647")
    return int(text_)
