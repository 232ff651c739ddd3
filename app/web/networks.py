"""What the page calls networks and experiments, and the groups that they stand in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from conv_advisor.data import networks

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
    "seeds": "All five networks",
    "fourth-seed": "All experiments",
    "more-networks": "All networks to train on",
    "held-out": "All networks to judge by",
}

GROUP_TITLES: Final = {
    "seeds": "",
    "fourth-seed": "Experiments",
    "more-networks": "More to train on",
    "held-out": "Never trained on",
}
"""What stands above the members of a group; the first ones need no word."""


def layers_of(name: str) -> list[networks.Layer]:
    """Every convolution of a network, with how often it occurs; the distinct layers of an experiment or a group.

    Raises
    ------
    UnknownNetwork
    """
    return networks.whole(name) if networks.is_network(name) else networks.layers(name)


@dataclass(frozen=True)
class NetworkGroup:
    """Networks that stand together, and the name that stands for all of them."""

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
