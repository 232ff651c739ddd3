"""Which cut of the grouped convolution a problem takes: the candidates, and the choice among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels.cuda.grouped.cost import expect, resident_blocks
from conv_advisor.kernels.cuda.grouped.cut import (
    MOST_SHARED_BYTES,
    MOST_WARPS,
    TILES,
    Cut,
    Geometry,
    Mode,
    Runs,
    Tile,
    columns_of_blocks,
    elements_of_word,
    geometry_of,
    group_words,
    modes_of,
    next_of,
    runs_of,
    shared_bytes_of,
    tiles_of,
)
from conv_advisor.kernels.cuda.parts.arithmetic import ceil_div
from conv_advisor.kernels.cuda.parts.candidates import AT_A_TIME, Candidates, joined, take
from conv_advisor.kernels.cuda.parts.offers import stacked
from conv_advisor.kernels.cuda.parts.shapes import Array, Shapes

_TILES: Final = stacked(TILES, axes=0)
_WARPS_M: Final = np.array((1, 2, 4, 8))
_GROUPS: Final = np.array((1, 2, 4, 8))
_WIDTHS: Final = (8, 16, 32, 64)
"""Columns of a tile of pixels that does not span whole rows."""
_PARTS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
"""Numbers of parts into which the words of a group's channels are divided, in addition to parts of one word each."""
_LEAST_FILTERS: Final = 8
"""Filters of a block where nothing larger fits."""


def every_cut(problems: Shapes) -> tuple[Array, Cut]:
    """The candidate cuts, with one tile of pixels per block and all channels at a time, and the problem of each cut.

    The axes of `is_wanted` are problems, tiles, warps over filters, warps over pixels, groups, widths of a tile.
    """
    filters = (problems.k // problems.groups)[:, None]
    is_tile = 8 * (_TILES.nt - 1) < filters
    full = ceil_div(filters, 8 * _TILES.nt)
    warps_n = np.stack((np.ones_like(full), np.minimum(2, full), np.minimum(4, full)), axis=-1)
    is_other = np.diff(warps_n, axis=-1, prepend=0) > 0
    shares = ceil_div(filters[..., None], 8 * _TILES.nt[:, None] * warps_n)
    is_busy = warps_n[..., None] * _WARPS_M <= MOST_WARPS
    is_odd = problems.c // problems.groups % elements_of_word(problems) != 0
    is_alone = (shares > 1) | is_odd[:, None, None]
    most = np.where(is_alone, 1, problems.groups[:, None, None])[..., None]
    most = np.minimum(most, MOST_WARPS // (warps_n[..., None] * _WARPS_M))
    pixels = 16 * _TILES.mt[:, None] * _WARPS_M
    widths, is_width = _widths(problems, pixels)
    is_wanted = (
        (is_tile[..., None] & is_other)[..., None, None, None]
        & (is_busy[..., None] & (most[..., None] >= _GROUPS))[..., None]
        & is_width[:, :, None, :, None]
    )
    owner, tile, at_n, at_m, at_group, at_width = np.nonzero(is_wanted)
    row_problems, warps, share = problems.take(owner), warps_n[owner, tile, at_n], shares[owner, tile, at_n]
    own_filters = filters[owner, 0]
    block_filters = np.where(share > 1, np.minimum(own_filters, 8 * _TILES.nt[tile] * warps), own_filters)
    tile_pixels = pixels[tile, at_m]
    tile_n, tile_p, tile_q = _tiles_of_pixels(row_problems, tile_pixels, widths[owner, at_width])
    words, ones = group_words(row_problems), np.ones_like(owner)
    cut = Cut(
        *(take(_TILES, tile), _WARPS_M[at_m], warps, _GROUPS[at_group], block_filters, tile_n, tile_p, tile_q),
        *(words, ones, ones),
    )
    return owner, cut


def _widths(problems: Shapes, pixels: Array) -> tuple[Array, Array]:
    """Columns that tiles may have, one row per problem, and which of them tiles of ``pixels`` pixels have room for."""
    widths = np.array([_widths_of(q) for q in problems.q.tolist()])
    is_whole = ((problems.p * problems.q)[:, None, None] <= pixels)[..., None]
    has_room = (widths > 0)[:, None, None] & (widths[:, None, None] <= pixels[..., None])
    return widths, np.where(is_whole, np.arange(widths.shape[1]) == 0, has_room)


@cache
def _widths_of(q: int) -> tuple[int, ...]:
    """Columns that tiles of rows of length q may have, padded with zeros.

    Their order decides between cuts with equal expected times. It is the order of a set, since the times that ship were
    measured with that order.
    """
    widths = {q, *(width for width in _WIDTHS if width < q)}
    return *widths, *(0,) * (1 + len(_WIDTHS) - len(widths))


def _tiles_of_pixels(problems: Shapes, pixels: Array, width: Array) -> tuple[Array, Array, Array]:
    """Images, rows and columns of tiles of at most ``pixels`` pixels, at most ``width`` wide for larger images."""
    n, p, q = problems.n, problems.p, problems.q
    is_whole = p * q <= pixels
    tile_q = np.where(is_whole, q, _share(q, width))
    tile_p = np.where(is_whole, p, _share(p, np.maximum(1, pixels // tile_q)))
    return np.where(is_whole, _share(n, np.maximum(1, pixels // (p * q))), 1), tile_p, tile_q


def _share(size: Any, most: Any) -> Any:
    """Size of equal shares that are at most ``most`` large."""
    return ceil_div(size, ceil_div(size, most))


def _chunks_of(problems: Shapes) -> tuple[Array, Array]:
    """Words of a group's channels staged at a time, one row per problem, and which of a row are not duplicates."""
    words = group_words(problems)[:, None]
    parts = np.append(np.broadcast_to(_PARTS, (len(problems), len(_PARTS))), words, axis=1)
    chunks = ceil_div(words, parts)
    multiple = np.where((words % 8 == 0) | (chunks > 8), 8, 4)
    is_rounded = (chunks < words) & ((parts < words) | np.equal(modes_of(problems), Mode.NHWC).reshape(-1, 1))
    chunks = np.where(is_rounded, np.minimum(words, next_of(chunks, 0, multiple)), chunks)
    is_seen = np.tril(chunks[:, :, None] == chunks[:, None, :], -1).any(axis=2)
    return chunks, ~is_seen


@dataclass(frozen=True)
class _Rows:
    """Cuts in one list, with their problems, layouts of shared memory and copies."""

    owner: Array
    cut: Cut
    g: Geometry
    runs: Runs
    shared_bytes: Array

    @classmethod
    def of(cls, problems: Shapes, owner: Array, cut: Cut) -> _Rows:
        """The rows of these cuts, in this order."""
        row_problems = problems.take(owner)
        runs = runs_of(row_problems, cut)
        g = geometry_of(row_problems, cut, runs)
        return cls(owner, cut, g, runs, shared_bytes_of(g, cut, cut.stages))


def _in_chunks(problems: Shapes) -> _Rows:
    """Every cut that fits, with one or two stages; from the third chunk size on, none after the first that fits."""
    owner, unchunked = every_cut(problems)
    chunks, is_new = _chunks_of(problems)
    is_wanted = is_new[owner] & (
        (chunks[owner] == unchunked.chunk_words[:, None]) | (unchunked.block_groups == 1)[:, None]
    )
    row, part = np.nonzero(is_wanted)
    cut = replace(take(unchunked, row), chunk_words=chunks[owner[row], part])
    rows = _Rows.of(problems, owner[row], cut)
    double_bytes = shared_bytes_of(rows.g, cut, 2)
    fits = rows.shared_bytes <= MOST_SHARED_BYTES
    is_last = np.zeros(is_wanted.shape, bool)
    is_last[row, part] = fits
    is_last &= is_wanted.cumsum(axis=1) > 2
    is_kept = (is_last.cumsum(axis=1) - is_last == 0)[row, part]
    has_two = (rows.g.chunks > 1) & (double_bytes <= MOST_SHARED_BYTES)
    kept_rows, stage = np.nonzero(np.stack((is_kept & fits, is_kept & has_two), axis=1))
    rows = take(rows, kept_rows)
    shared_bytes = np.where(stage > 0, double_bytes[kept_rows], rows.shared_bytes)
    return replace(rows, cut=replace(rows.cut, stages=stage + 1), shared_bytes=shared_bytes)


def _least(problems: Shapes, owner: Array) -> _Rows:
    """The cut for problems for which no other fits: one pixel, few filters, four words of channels."""
    row_problems, ones = problems.take(owner), np.ones_like(owner)
    filters = np.minimum(_LEAST_FILTERS, row_problems.k // row_problems.groups)
    chunk = np.minimum(group_words(row_problems), 4)
    while True:
        cut = Cut(Tile(ones, ones), ones, ones, ones, filters, ones, ones, ones, chunk, ones, ones)
        rows = _Rows.of(problems, owner, cut)
        is_large = (rows.shared_bytes > MOST_SHARED_BYTES) & (filters > 1)
        if not is_large.any():
            return rows
        filters = filters - is_large


def candidates(problems: Shapes, device: Device) -> Candidates[Cut]:
    """Every cut, once with a block per tile of pixels, once with as many as run at a time, which keep their weight.

    Parameters
    ----------
    problems : Shapes
        Layers that ``cuda.grouped`` computes.
    device : Device
    """
    rows = _in_chunks(problems)
    without = np.flatnonzero(np.bincount(rows.owner, minlength=len(problems)) == 0)
    if len(without):
        rows = joined(rows, _least(problems, without))
        rows = take(rows, np.argsort(rows.owner, kind="stable"))
    row_problems, cut = problems.take(rows.owner), rows.cut
    resident = resident_blocks(cut, rows.shared_bytes, device)
    tiles = tiles_of(row_problems, cut)
    room = np.maximum(1, device.processors * resident // columns_of_blocks(row_problems, cut))
    shared_out = replace(cut, tile_blocks=np.stack((tiles, ceil_div(tiles, ceil_div(tiles, room)))))
    us = expect(shared_out, row_problems, rows.g, rows.runs, resident, device)
    twice = np.repeat(np.arange(len(rows.owner)), 2)
    cuts = replace(take(cut, twice), tile_blocks=shared_out.tile_blocks.T.ravel())
    return Candidates(rows.owner[twice], cuts, us.T.ravel())


def plan_cuts(problems: Shapes, device: Device) -> list[Cut]:
    """For each problem the cut that the model expects to be fastest."""
    return [cut for batch in problems.parts(AT_A_TIME) for cut in candidates(batch, device).cheapest()]


def plan_cut(problem: ConvProblem, device: Device) -> Cut:
    """`plan_cuts` of one problem."""
    (cut,) = plan_cuts(Shapes.of(problem), device)
    return cut


def expected(problem: ConvProblem, device: Device) -> dict[Cut, float]:
    """The cuts of one problem, and the time in us that each is expected to take."""
    return candidates(Shapes.of(problem), device).expected()
