"""The layers of the papers: as many as the papers count, and what they name."""

from __future__ import annotations

from collections import Counter

import pytest

from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidProblem, UnknownNetwork
from conv_advisor.data.problem import ConvProblem, DType, Layout

BY_FILTER = {
    "alexnet": {3: 3, 5: 1},
    "googlenet": {1: 24, 3: 10, 5: 8},
    "squeezenet": {1: 15, 3: 6},
    "resnet50": {1: 8, 3: 4},
    "vgg19": {3: 9},
}
"""Distinct layers; cuConv, table 1, gives their number for each network and the shares of the filter sizes."""


def test_the_seeds_are_602_configurations() -> None:
    problems = networks.problems("seeds")
    assert len(problems) == len(set(problems)) == 602
    assert Counter(problem.n for problem in problems) == dict.fromkeys(networks.SEED_BATCHES, 86)
    assert {(problem.dtype, problem.layout) for problem in problems} == {(DType.FLOAT32, Layout.NCHW)}


def test_the_seeds_in_every_dtype_and_layout() -> None:
    problems = networks.problems("seeds", dtypes=DType, layouts=Layout)
    assert Counter((problem.dtype, problem.layout) for problem in problems) == {
        (dtype, layout): 602 for dtype in DType for layout in Layout
    }
    assert len(set(problems)) == 602 * 8


@pytest.mark.parametrize(("name", "count"), [("googlenet", 42), ("squeezenet", 21), ("alexnet", 4), ("resnet50", 12)])
def test_distinct_layers_as_in_table_1_of_cuconv(name: str, count: int) -> None:
    assert len(networks.layers(name)) == count


def test_vgg19_has_nine_distinct_layers() -> None:
    assert len(networks.layers("vgg19")) == 9


@pytest.mark.parametrize("name", BY_FILTER)
def test_layers_by_network_and_filter_size(name: str) -> None:
    assert Counter(layer.problem.r for layer in networks.layers(name)) == BY_FILTER[name]
    assert Counter(problem.r for problem in networks.problems(name)) == {
        taps: 7 * count for taps, count in BY_FILTER[name].items()
    }


def test_the_union_by_filter_size() -> None:
    assert Counter(layer.problem.r for layer in networks.layers("seeds")) == {1: 45, 3: 32, 5: 9}


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("googlenet", "7-1-1-32-832"),
        ("googlenet", "7-1-1-256-832"),
        ("googlenet", "7-1-5-128-48"),
        ("googlenet", "14-1-3-208-96"),
        ("alexnet", "27-1-5-256-96"),
        ("squeezenet", "13-1-1-1000-512"),
        ("resnet50", "7-1-1-2048-512"),
        ("vgg19", "224-1-3-64-3"),
    ],
)
def test_layers_that_the_papers_name(name: str, layer: str) -> None:
    assert ConvProblem.parse(layer) in networks.problems(name)


@pytest.mark.parametrize("name", networks.names())
def test_every_layer_is_there_once_and_has_a_source(name: str) -> None:
    layers = networks.layers(name)
    assert len({layer.problem for layer in layers}) == len(layers)
    assert all(len(layer.source) > 10 for layer in layers)


@pytest.mark.parametrize("name", ["seeds", "fourth-seed"])
def test_every_layer_of_the_papers_has_a_short_form(name: str) -> None:
    for layer in networks.layers(name):
        assert layer.problem.short.count("-") == 4
        assert ConvProblem.parse(layer.problem.short) == layer.problem


def test_advice_is_judged_by_twelve_networks_with_layers_that_nothing_else_has() -> None:
    assert len(networks.GROUPS["held-out"]) == 12
    assert not set(networks.GROUPS["held-out"]) & set(networks.GROUPS["more-networks"])
    known = {layer.problem for name in ("seeds", "more-networks") for layer in networks.layers(name)}
    assert sum(layer.problem not in known for layer in networks.layers("held-out")) > 200


def test_networks_beyond_classifiers_judge_by_layers_that_nothing_is_trained_on() -> None:
    taught, judging = (
        {layer.problem for layer in networks.layers(name)} for name in ("beyond-classifiers", "beyond-held-out")
    )
    assert len(networks.GROUPS["beyond-classifiers"]) == len(networks.GROUPS["beyond-held-out"]) == 9
    assert not taught & judging
    assert judging <= networks.held_out_layers()
    assert any(layer.dilation_h > 1 for layer in judging)
    assert any(layer.h == 1 for layer in judging)


def test_layers_that_the_papers_beyond_classifiers_name() -> None:
    deeplab = {layer.problem for layer in networks.layers("deeplabv3_resnet50")}
    assert {each.dilation_h for each in deeplab if each.c == 2048 and each.r == 3} == {12, 24, 36}
    flow = {layer.problem for layer in networks.layers("raft_large")}
    assert {(1, 5), (5, 1)} <= {(each.r, each.s) for each in flow}
    speech = [layer.problem for layer in networks.layers("wav2vec2_base")]
    assert [(each.w, each.s, each.stride_w) for each in speech[:2]] == [(160000, 10, 5), (31999, 3, 2)]
    go = networks.layers("alphago_zero")
    assert [layer.count for layer in go] == [1, 38, 1, 1]


def test_the_experiments_of_the_fourth_seed() -> None:
    assert [problem.short for problem in networks.problems("input-layers")] == [
        f"{size}-1-{taps}-1-3" for taps in (3, 5, 7) for size in (256, 512, 1024)
    ]
    assert [problem.short for problem in networks.problems("feature-layers")] == [
        f"16-1-3-1-{channels}" for channels in (128, 256, 512, 1024)
    ]
    assert [problem.short for problem in networks.problems("filter-sweep")] == [
        f"512-1-{taps}-1-1" for taps in (2, 4, 8, 16, 32, 64, 128, 256, 512)
    ]
    assert len(networks.problems("fourth-seed")) == 9 + 4 + 9


def test_batches_may_be_chosen() -> None:
    assert [problem.n for problem in networks.problems("filter-sweep", batches=[2, 5])][:2] == [2, 5]
    assert len(networks.problems("vgg19", batches=[3])) == 9


def test_batches_in_which_a_layer_is_too_large_are_left_out_unless_they_were_asked_for() -> None:
    batches: dict[ConvProblem, list[int]] = {}
    for problem in networks.problems("stable_diffusion_decoder"):
        batches.setdefault(problem.layer, []).append(problem.n)
    assert set(batches) == {layer.problem.layer for layer in networks.layers("stable_diffusion_decoder")}
    assert {tuple(counts) for counts in batches.values()} > {networks.SEED_BATCHES}
    with pytest.raises(InvalidProblem, match="256, 512, 128, 128"):
        networks.problems("stable_diffusion_decoder", batches=[256])


def test_an_unknown_network_is_refused_with_the_known_ones() -> None:
    said = r"^unknown network 'lenet'; did you mean 'alexnet'\? known: alexnet, googlenet, .* and [3-5][0-9] more$"
    with pytest.raises(UnknownNetwork, match=said):
        networks.problems("lenet")
    with pytest.raises(UnknownNetwork):
        networks.layers("../networks/alexnet")


WHOLE = {
    "alexnet": (5, 1.077),
    "googlenet": (57, 1.585),
    "squeezenet": (26, 0.8327),
    "resnet50": (53, 3.86),
    "vgg19": (16, 19.51),
}
"""Convolutions of one pass, and their multiply-adds in units of 10^9.

AlexNet: Sze et al. 2017, table II, count 0.666 with conv2, conv4 and conv5 in two groups each. GoogLeNet: Szegedy et
al., table 1, has 1.501 with 0.034 for conv1, which takes 0.118. SqueezeNet: its authors' 1.72 GFLOP have conv10 on
15×15, not on the paper's 13×13. ResNet-50: Sze et al., table II. VGG19: He et al., figure 3, has 19.6 with 0.124 of the
three fully connected layers."""


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_seed_network_does_the_work_that_is_published(name: str) -> None:
    layers = networks.whole(name)
    count, billions = WHOLE[name]
    assert sum(layer.count for layer in layers) == count
    assert macs(layers) == pytest.approx(billions * 1e9, rel=0.003)


def test_the_published_counts_are_those_of_other_readings_of_the_same_networks() -> None:
    alexnet = [layer.problem for layer in networks.whole("alexnet")]
    towers = sum(problem.flops // 2 / (2 if place in (1, 3, 4) else 1) for place, problem in enumerate(alexnet))
    assert towers == pytest.approx(0.666e9, rel=0.002)
    squeezenet = networks.whole("squeezenet")
    conv10 = squeezenet[-1].problem
    assert 2 * (macs(squeezenet) + (15 * 15 - 13 * 13) * conv10.c * conv10.k) == pytest.approx(1.72e9, rel=0.003)


TORCHVISION = {  # GFLOPS on its page of models, which are multiply-adds; inputs of its one linear layer or its two
    "mobilenet_v2": (0.301, [(1280, 1000)]),
    "mnasnet1_0": (0.314, [(1280, 1000)]),
    "densenet121": (2.834, [(1024, 1000)]),
    "efficientnet_b0": (0.386, [(1280, 1000)]),
    "inception_v3": (5.713, [(2048, 1000)]),
    "mobilenet_v3_large": (0.217, [(960, 1280), (1280, 1000)]),
    "regnet_y_400mf": (0.402, [(440, 1000)]),
    "resnext50_32x4d": (4.23, [(2048, 1000)]),
    "shufflenet_v2_x1_0": (0.145, [(1024, 1000)]),
    "wide_resnet50_2": (11.398, [(2048, 1000)]),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_a_whole_network_of_torchvision_does_the_work_that_it_publishes(name: str) -> None:
    billions, linear = TORCHVISION[name]
    counted = macs(networks.whole(name)) + sum(inputs * outputs for inputs, outputs in linear)
    assert counted == pytest.approx(billions * 1e9, abs=0.0006e9)


@pytest.mark.parametrize("name", [name for name in networks.names() if networks.is_network(name)])
def test_a_whole_network_has_every_layer_that_was_measured_of_it(name: str) -> None:
    whole = {layer.problem for layer in networks.whole(name)}
    others = {layer.problem for layer in networks.layers(name)} - whole
    if name == "resnet50":  # the seed papers measured its strided 1x1 layers without their strides
        others = {problem for problem in others if "first 1x1" not in source_of(name, problem)}
    assert not others
    assert len(whole) == len(networks.whole(name))


def test_experiments_and_groups_have_no_whole() -> None:
    for name in ("filter-sweep", "seeds", "lenet"):
        with pytest.raises(UnknownNetwork, match="known: alexnet"):
            networks.whole(name)


def macs(layers: list[networks.Layer]) -> int:
    return sum(layer.count * layer.problem.flops // 2 for layer in layers)


def source_of(name: str, problem: ConvProblem) -> str:
    return next(layer.source for layer in networks.layers(name) if layer.problem == problem)
