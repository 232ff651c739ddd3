"""Keywords beside a layer: the fields that `app.wire.schemas` and `app.jobs.requests` read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import TypedDict

from conv_advisor.data.epilogue import Activation
from conv_advisor.data.problem import ConvProblem, DType, Layout

if TYPE_CHECKING:
    import numpy as np

AnyLayer: TypeAlias = str | ConvProblem
"""``size-batch-filter-filters-depth``, such as ``14-1-3-256-128``, or a problem."""

AnyModel: TypeAlias = str | bytes | PathLike[str]
"""A shipped network by its name; or an ONNX model: its file, as a path or as text that ends in ``.onnx``, or its
bytes."""


class LayerKeywords(TypedDict, total=False):
    """Fields of a layer beside its short form; a `ConvProblem` has them all.

    Where tensors are convolved, bias and residual may also be arrays, which are added to the result.
    """

    stride: int
    stride_h: int
    stride_w: int
    pad: int
    pad_h: int
    pad_w: int
    pad_h_end: int
    pad_w_end: int
    dilation: int
    dilation_h: int
    dilation_w: int
    groups: int
    bias: bool | np.ndarray
    residual: bool | np.ndarray
    activation: Activation | str
    dtype: DType | str
    layout: Layout | str


class LimitKeywords(TypedDict, total=False):
    """The device, and the limits of a variant."""

    device: str
    max_workspace_bytes: int
    deterministic: bool
    only: str


class AdviceKeywords(LayerKeywords, LimitKeywords, total=False):
    """A layer, on a device and within limits."""


class ManyKeywords(AdviceKeywords, total=False):
    """Which details each layer of a list is answered with."""

    ranking: bool
    baselines: bool


class PlanKeywords(LimitKeywords, total=False):
    """Batches and precision; the workspace is that of the whole network.

    ``dims`` gives sizes of an ONNX model's symbolic dimensions, by name.
    """

    batches: Sequence[int]
    dtype: DType | str
    dims: Mapping[str, int]


class VariantsKeywords(LayerKeywords, total=False):
    """The device."""

    device: str


class ConvolutionKeywords(LayerKeywords, total=False):
    """What runs a convolution: ``advised``, ``all`` or the id of a variant; ``top`` measures so many of the advised.

    ``measure="if unsure"`` measures the first three if the tree is not sure of the first.
    """

    variant: str
    top: int
    measure: str
    seed: int
    max_workspace_bytes: int
    deterministic: bool


class MeasuringKeywords(TypedDict, total=False):
    """Keywords that sweeps and long measurements share."""

    device: str
    variants: Sequence[str]
    l2: str
    seed: int
    max_workspace_bytes: int
    run_id: str


class SweepKeywords(MeasuringKeywords, total=False):
    """Layers of networks, and sampled layers."""

    networks: Sequence[str]
    sampled: int
    batches: Sequence[int]
    dtypes: Sequence[DType | str]
    layouts: Sequence[Layout | str]


class LongKeywords(MeasuringKeywords, total=False):
    """Layers to measure for long: their precision and memory order, and the number of samples of each."""

    dtype: DType | str
    layout: Layout | str
    samples: int


class RetrainKeywords(TypedDict, total=False):
    """The device whose measurements train the tree, and whether the tree takes over even if it is worse."""

    device: str
    force: bool


class CalibrateKeywords(TypedDict, total=False):
    """The GPU, the time limit, and whether the adapted tree takes over even if it is worse."""

    device: str
    minutes: float
    seed: int
    force: bool


class RefreshKeywords(TypedDict, total=False):
    """The device, the time limit, the share of known times, and whether a repaired tree takes over in any case."""

    device: str
    minutes: float
    share: float
    seed: int
    force: bool


class JobsKeywords(TypedDict, total=False):
    """How many jobs to list, older than which one, and of which kind and state."""

    limit: int
    before: str
    kind: str
    state: str
