"""Costs that the time models of the implicit GEMM fed by the tensor memory accelerator count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Costs of large tiles, in cycles of a multiprocessor, except ``loaded_bytes``.

    Parameters
    ----------
    loaded_bytes : float
        Bytes that it gets from the L2 cache in a cycle while all multiprocessors load.
    pixel : float
        Cycles of a pixel of a stage that im2col mode loads.
    stage : float
        Cycles of each stage besides its products or bytes.
    box : float
        Cycles of a group of warps for a box of y, or for as many outputs in smaller boxes.
    turn : float
        Cycles from the last products of a group to the first of the other.
    start : float
        Cycles from a block's start to its first products.
    meeting : float
        Cycles of the blocks of a cluster, before and after they exchange sums.
    push : float
        Cycles of 1024 sums that a block gives to others.
    """

    loaded_bytes: float
    pixel: float
    stage: float
    box: float
    turn: float
    start: float
    meeting: float
    push: float


@dataclass(frozen=True)
class BlockCosts:
    """Costs of tiles of which several blocks may share a multiprocessor, in its cycles; bytes are per cycle.

    Parameters
    ----------
    start : float
        Cycles from a launch to the first products, or to the first loads that go to registers; and from the last
        outputs to the end.
    block : float
        Cycles of each block that runs on a multiprocessor.
    shared_bytes : float
        Bytes that each multiprocessor gets from the L2 cache in a cycle while all load.
    outputs : float
        Cycles of 1024 outputs, or sums that a block adds.
    """

    start: float
    block: float
    shared_bytes: float
    outputs: float


@dataclass(frozen=True)
class SmallCosts(BlockCosts):
    """Additional costs of small tiles.

    Parameters
    ----------
    loaded_bytes : float
        Bytes that one multiprocessor gets in a cycle.
    pixel : float
        Cycles of a pixel of a stage that im2col mode loads.
    ragged : float
        Cycles of a pixel or filter in a stage that is partly beyond the last channel.
    read_bytes, written_bytes, memory_bytes : float
        A multiprocessor's share, in bytes per cycle, of reading x and weight once, of writing y once, and of moving,
        in addition, the bytes that L2 does not hold.
    stage, turn : float
        Cycles of a block from one stage to the next, at least, and from one tile to the next.
    ring : float
        Cycles from one load of a slot to its next load, where slots are used for several stages.
    filter : float
        Cycles of a warp that ends a tile, for each filter.
    """

    loaded_bytes: float
    pixel: float
    ragged: float
    read_bytes: float
    written_bytes: float
    memory_bytes: float
    stage: float
    turn: float
    ring: float
    filter: float


@dataclass(frozen=True)
class ClusterCosts(BlockCosts):
    """Additional costs of tiles whose gemm_k the blocks of a cluster may share.

    Parameters
    ----------
    meeting, rank, push : float
        Cycles of a cluster, of each of its blocks, and of 1024 sums that a block pushes to others.
    """

    meeting: float
    rank: float
    push: float


@dataclass(frozen=True)
class SplitCosts(ClusterCosts):
    """Additional costs of such tiles where the accelerator loads them.

    Parameters
    ----------
    loaded_bytes : float
        Bytes that one multiprocessor gets in a cycle.
    pixel : float
        Cycles of a pixel of a stage that im2col mode loads.
    products : float
        Products of a pixel and a filter over a stage's channels that a multiprocessor makes in a cycle by mma.sync;
        those of wgmma take less time than reading their operands.
    lone : float
        Relative increase of the time of products where only one warp multiplies.
    local_bytes : float
        Bytes moved to and from shared memory in a cycle.
    stage : float
        Cycles of a block from one stage to the next, at least.
    group_stage : float
        The same by wgmma, in float32 where warps part the columns.
    """

    loaded_bytes: float
    pixel: float
    products: float
    lone: float
    local_bytes: float
    stage: float
    group_stage: float


@dataclass(frozen=True)
class StraightCosts(ClusterCosts):
    """Additional costs of such tiles whose operands go straight to registers.

    Parameters
    ----------
    read_bytes : float
        Bytes of weight that one multiprocessor gets in a cycle; `shared_bytes` counts weight too.
    pixel, window : float
        Time of a byte of x relative to one of weight: where filters have one tap, and where they have several.
    load : float
        Cycles of a warp's load and of the products with it.
    address : float
        Cycles of a load of x where filters have several taps, for its address.
    ask : float
        Cycles of each load that a warp issues before it multiplies.
    turn : float
        Cycles from issuing loads to multiplying.
    """

    read_bytes: float
    pixel: float
    window: float
    load: float
    address: float
    ask: float
    turn: float
