"""What the models of tiles of the implicit GEMM that the tensor memory accelerator feeds count."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """What a multiprocessor takes, in cycles.

    Parameters
    ----------
    loaded_bytes : float
        That it gets from the L2 cache in a cycle while all do.
    pixel : float
        Of a pixel of a stage that im2col mode loads.
    stage : float
        Of each stage besides its products or bytes.
    box : float
        Of a group of warps, of a box of y, or of as many outputs in smaller ones.
    turn : float
        From the last products of a group to the first of the other.
    start : float
        From a block's start to its first products.
    meeting : float
        Of the blocks of a cluster, before and after they exchange sums.
    push : float
        Of 1024 sums that a block gives to others.
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
class SmallCosts:
    """What small tiles take, in cycles of a multiprocessor.

    Parameters
    ----------
    start : float
        From a launch to the first products, and from the last outputs to the end.
    block : float
        Of each block that shares a multiprocessor.
    loaded_bytes : float
        That one multiprocessor gets in a cycle.
    pixel : float
        Of a pixel of a stage that im2col mode loads.
    ragged : float
        Of a pixel or filter of a stage of whose channels some do not exist.
    shared_bytes : float
        That each gets from the L2 cache in a cycle while all do.
    read_bytes, written_bytes, memory_bytes : float
        Of x and weight, and of y, each once, a multiprocessor's part in a cycle; and on top of what L2 does not hold.
    stage, turn : float
        Of a block, from a stage to the next at least, and from a tile to the next.
    ring : float
        From a load of a slot to the next one, where slots are for several stages.
    outputs : float
        Of 1024 outputs.
    filter : float
        Of a warp that ends a tile, for each filter.
    """

    start: float
    block: float
    loaded_bytes: float
    pixel: float
    ragged: float
    shared_bytes: float
    read_bytes: float
    written_bytes: float
    memory_bytes: float
    stage: float
    turn: float
    ring: float
    outputs: float
    filter: float


@dataclass(frozen=True)
class SplitCosts:
    """What tiles whose gemm_k is shared take, in cycles of a multiprocessor.

    Parameters
    ----------
    start : float
        From a launch to the first products, and from the last outputs to the end.
    block : float
        Of each block that shares a multiprocessor.
    loaded_bytes : float
        That one multiprocessor gets in a cycle.
    pixel : float
        Of a pixel of a stage that im2col mode loads.
    shared_bytes : float
        That each gets from the L2 cache in a cycle while all do.
    products : float
        Of a pixel, a filter and a stage's channels, that a multiprocessor makes in a cycle by mma.sync; those of wgmma
        take less than what they read.
    lone : float
        How much longer products take for one warp.
    local_bytes : float
        To and from shared memory in a cycle.
    stage : float
        Of a block, from a stage to the next at least.
    group_stage : float
        The same by wgmma, in float32 where warps part the columns.
    outputs : float
        Of 1024 sums that a block adds, or outputs.
    meeting, rank, push : float
        Of a cluster, of each of its blocks, and of 1024 sums that one pushes to others.
    """

    start: float
    block: float
    loaded_bytes: float
    pixel: float
    shared_bytes: float
    products: float
    lone: float
    local_bytes: float
    stage: float
    group_stage: float
    outputs: float
    meeting: float
    rank: float
    push: float


@dataclass(frozen=True)
class StraightCosts:
    """What tiles take whose operands go straight to registers, in cycles of a multiprocessor.

    Parameters
    ----------
    start : float
        From a launch to the first loads, and from the last outputs to the end.
    block : float
        Of each block that comes to a multiprocessor.
    read_bytes : float
        Of weight that one multiprocessor gets in a cycle.
    shared_bytes : float
        Of weight that each gets from the L2 cache in a cycle while all do.
    pixel, window : float
        How much longer x takes than weight: where filters have one tap, and where its pixels are read for several.
    load : float
        Of a warp's load, its products with it.
    address : float
        Of a load of x where filters have several taps.
    ask : float
        Of each load that a warp asks for before it multiplies.
    turn : float
        From asking to multiplying.
    outputs : float
        Of 1024 sums that a block adds, or outputs.
    meeting, rank, push : float
        Of a cluster, of each of its blocks, and of 1024 sums that one pushes to others.
    """

    start: float
    block: float
    read_bytes: float
    shared_bytes: float
    pixel: float
    window: float
    load: float
    address: float
    ask: float
    turn: float
    outputs: float
    meeting: float
    rank: float
    push: float
