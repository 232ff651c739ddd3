"""What can be said beside a layer, as keywords: the requests that `app.wire.schemas` and `app.jobs.requests` read."""

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
"""A network that ships, by its name; or an ONNX model: its file, as a path or as text that ends in ``.onnx``, or its
bytes."""


class LayerKeywords(TypedDict, total=False):
    """What a layer is beside its short form; a `ConvProblem` says all of it.

    Where tensors are convolved, bias and residual may be arrays too, which are added to the result.
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
    """On which device, and within which limits."""

    device: str
    max_workspace_bytes: int
    deterministic: bool
    only: str


class AdviceKeywords(LayerKeywords, LimitKeywords, total=False):
    """A layer, on a device and within limits."""


class ManyKeywords(AdviceKeywords, total=False):
    """How much is said of each layer of a list."""

    ranking: bool
    baselines: bool


class PlanKeywords(LimitKeywords, total=False):
    """For which batches and in which precision; the workspace is that of the whole network.

    ``dims`` has sizes of an ONNX model's symbolic dimensions, by name.
    """

    batches: Sequence[int]
    dtype: DType | str
    dims: Mapping[str, int]


class VariantsKeywords(LayerKeywords, total=False):
    """On which device."""

    device: str


class ConvolutionKeywords(LayerKeywords, total=False):
    """What runs a convolution: ``advised``, ``all`` or the id of a variant; of the advised the first so many.

    ``measure="if unsure"`` measures the first three where the tree is not sure of the first.
    """

    variant: str
    top: int
    measure: str
    seed: int
    max_workspace_bytes: int
    deterministic: bool


class MeasuringKeywords(TypedDict, total=False):
    """What sweeps and long measurements have in common."""

    device: str
    variants: Sequence[str]
    l2: str
    seed: int
    max_workspace_bytes: int
    run_id: str


class SweepKeywords(MeasuringKeywords, total=False):
    """Layers of networks, and sampled ones."""

    networks: Sequence[str]
    sampled: int
    batches: Sequence[int]
    dtypes: Sequence[DType | str]
    layouts: Sequence[Layout | str]


class LongKeywords(MeasuringKeywords, total=False):
    """Layers that are measured for long: in which precision and order they are, and how many samples each has."""

    dtype: DType | str
    layout: Layout | str
    samples: int


class RetrainKeywords(TypedDict, total=False):
    """Whose measurements, and whether the new tree takes over even if it is worse."""

    device: str
    force: bool


class CalibrateKeywords(TypedDict, total=False):
    """Which GPU, for how long, and whether the adapted tree takes over even if it is worse."""

    device: str
    minutes: float
    seed: int
    force: bool


class RefreshKeywords(TypedDict, total=False):
    """Which device, for how long, how much of what is known, and whether a repaired tree takes over in any case."""

    device: str
    minutes: float
    share: float
    seed: int
    force: bool


class JobsKeywords(TypedDict, total=False):
    """How many jobs are listed, older than which, and of which kind and state alone."""

    limit: int
    before: str
    kind: str
    state: str
