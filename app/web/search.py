"""Search by words: networks by their names, layers by their sizes, kinds and places in a network."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from conv_advisor.app.web.forms import address
from conv_advisor.app.web.networks import TITLES, layers_of, network_groups
from conv_advisor.data import networks
from conv_advisor.data.errors import InvalidInput
from conv_advisor.data.problem import ConvProblem

MOST: Final = 50
"""Layers that are shown at most; a more specific word narrows the search."""

_LONGEST: Final = 200


@dataclass(frozen=True)
class FoundNetwork:
    """A network, an experiment or a group whose name has every word."""

    name: str
    title: str
    n_layers: int


@dataclass(frozen=True)
class FoundLayer:
    """A layer with every word in its sizes, its kind, its networks or its places there."""

    short: str
    kinds: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    href: str


@dataclass(frozen=True)
class SearchView:
    """What was found.

    Parameters
    ----------
    words : str
        As they were typed.
    layer : str or None
        The layer that the words name, if they name one; a network need not have it.
    networks : sequence of FoundNetwork
    layers : sequence of FoundLayer
        At most `MOST`.
    n_layers : int
        All that match.
    """

    words: str
    layer: str | None
    networks: Sequence[FoundNetwork]
    layers: Sequence[FoundLayer]
    n_layers: int


def search_view(words: str) -> SearchView:
    """Networks and layers that have every word somewhere."""
    words = words.strip()[:_LONGEST]
    terms = words.casefold().replace("×", "x").split()
    layer = _layer(words)
    if not terms:
        return SearchView(words, None, (), (), 0)
    at_one = replace(layer, n=1).short if layer else None
    matchers = [re.compile(_as_typed(word)).search for word in terms]
    matching = [
        entry for entry in _entries() if entry.layer.short == at_one or all(find(entry.text) for find in matchers)
    ]
    return SearchView(
        words=words,
        layer=layer.brief if layer else None,
        networks=_networks(terms),
        layers=[_placed(entry.layer, layer) for entry in matching[:MOST]],
        n_layers=len(matching),
    )


@dataclass(frozen=True)
class _Entry:
    layer: FoundLayer
    text: str


def _placed(layer: FoundLayer, problem: ConvProblem | None) -> FoundLayer:
    """The layer, in the batch of the search."""
    if problem is None or problem.n == 1 or replace(problem, n=1).short != layer.short:
        return layer
    return replace(layer, short=problem.short, href=address("/", layer=problem.brief, network=layer.places[0][0]))


def _networks(terms: Sequence[str]) -> list[FoundNetwork]:
    counts = {name: count for group in network_groups() for name, count in group.n_layers.items()}
    return [
        FoundNetwork(name, TITLES.get(name, name), count)
        for name, count in counts.items()
        if all(word in f"{name} {TITLES.get(name, name)}".casefold() for word in terms)
    ]


def _as_typed(word: str) -> str:
    """A pattern for a word; a number matches from its first digit on, so that 5x5 does not match 55x55."""
    return (r"(?<!\d)" if word[0].isdigit() else "") + re.escape(word)


@cache
def _entries() -> tuple[_Entry, ...]:
    """Every layer of every network and experiment, once, with the words it can be found by."""
    places: dict[ConvProblem, list[tuple[str, str]]] = {}
    for name in networks.names():
        if name not in networks.GROUPS:
            for layer in layers_of(name):
                places.setdefault(layer.problem, []).append((name, layer.source))
    return tuple(_entry(problem, where) for problem, where in places.items())


def _entry(problem: ConvProblem, places: Sequence[tuple[str, str]]) -> _Entry:
    kinds = _kinds(problem)
    layer = FoundLayer(problem.short, kinds, tuple(places), address("/", layer=problem.brief, network=places[0][0]))
    titles = (f"{name} {TITLES.get(name, name)} {source}" for name, source in places)
    # Padding is left out: else "3x3" would find every padding of 3.
    sizes = (written.partition("-pad")[0] for written in (problem.brief, problem.short))
    return _Entry(layer, " ".join((*sizes, *kinds, *titles)).casefold())


def _kinds(problem: ConvProblem) -> tuple[str, ...]:
    is_depthwise = problem.groups > 1 and problem.groups == problem.c
    applies = {
        f"{problem.r}x{problem.s}": True,
        "pointwise": problem.r == problem.s == 1,
        "depthwise": is_depthwise,
        "grouped": problem.groups > 1 and not is_depthwise,
        "strided": max(problem.stride_h, problem.stride_w) > 1,
        "dilated": max(problem.dilation_h, problem.dilation_w) > 1,
    }
    return tuple(name for name, is_so in applies.items() if is_so)


def _layer(words: str) -> ConvProblem | None:
    try:
        return ConvProblem.parse(words)
    except InvalidInput:
        return None
