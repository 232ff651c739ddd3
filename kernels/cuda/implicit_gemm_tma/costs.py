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
class BlockCosts:
    """What tiles take of which several blocks may share a multiprocessor, in its cycles.

    Parameters
    ----------
    start : float
        From a launch to the first products, or to the first loads that go to registers; and from the last outputs to
        the end.
    block : float
        Of each block that comes to a multiprocessor.
    shared_bytes : float
        That each gets from the L2 cache in a cycle while all do.
    outputs : float
        Of 1024 outputs, or sums that a block adds.
    """

    start: float
    block: float
    shared_bytes: float
    outputs: float


@dataclass(frozen=True)
class SmallCosts(BlockCosts):
    """What small tiles take beside that.

    Parameters
    ----------
    loaded_bytes : float
        That one multiprocessor gets in a cycle.
    pixel : float
        Of a pixel of a stage that im2col mode loads.
    ragged : float
        Of a pixel or filter of a stage of whose channels some do not exist.
    read_bytes, written_bytes, memory_bytes : float
        Of x and weight, and of y, each once, a multiprocessor's part in a cycle; and on top of what L2 does not hold.
    stage, turn : float
        Of a block, from a stage to the next at least, and from a tile to the next.
    ring : float
        From a load of a slot to the next one, where slots are for several stages.
    filter : float
        Of a warp that ends a tile, for each filter.
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
    """What tiles take beside that whose gemm_k the blocks of a cluster may share.

    Parameters
    ----------
    meeting, rank, push : float
        Of a cluster, of each of its blocks, and of 1024 sums that one pushes to others.
    """

    meeting: float
    rank: float
    push: float


@dataclass(frozen=True)
class SplitCosts(ClusterCosts):
    """What such tiles take beside that where the accelerator loads them.

    Parameters
    ----------
    loaded_bytes : float
        That one multiprocessor gets in a cycle.
    pixel : float
        Of a pixel of a stage that im2col mode loads.
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
    """What such tiles take beside that whose operands go straight to registers.

    Parameters
    ----------
    read_bytes : float
        Of weight that one multiprocessor gets in a cycle; `shared_bytes` are such too.
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
    """

    read_bytes: float
    pixel: float
    window: float
    load: float
    address: float
    ask: float
    turn: float
