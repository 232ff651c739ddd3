"""Every tile and cluster of the implicit GEMM on a real GPU, whatever the kernel's own rule would choose."""

from __future__ import annotations

from typing import Any

import pytest

from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm import menu, most_taps
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as choice
from conv_advisor.kernels.cuda.parts.fitted import tiles_of_every_device
from conv_advisor.kernels.cuda.parts.multiprocessor import has_clusters
from conv_advisor.kernels.cuda.parts.offers import Cut
from conv_advisor.kernels.tolerance import tolerance
from tests.shapes import EDGE_SHAPES

pytestmark = pytest.mark.gpu

EDGES = [ConvProblem(**shape, dtype=dtype) for shape in EDGE_SHAPES.values() for dtype in DType]
CLAIMED = [p for p in EDGES if p.groups == 1 and p.r * p.s <= most_taps(p)]


@pytest.fixture(scope="module")
def runner() -> Any:
    from conv_advisor.kernels.bench import open_runner

    return open_runner("cuda:0")


@pytest.mark.parametrize("problem", CLAIMED, ids=lambda problem: problem.key)
def test_every_cut_is_right_even_where_blocks_of_a_cluster_have_no_stage(runner: Any, problem: ConvProblem) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm.launch import launch as launch_cut

    operands = runner.make_operands(problem, 0)
    clusters = range(1, menu.LARGEST_CLUSTER + 1 if has_clusters(runner.device) else 2)
    for tile in tiles_of_every_device(menu.MENUS, problem.dtype):
        for cluster in clusters:
            with translated():
                launch = launch_cut(problem, runner.device, Cut(tile, cluster))
            error = runner.first_run(problem, launch, operands).max_error
            assert error <= tolerance(problem), (tile, cluster)


@pytest.mark.parametrize("problem", CLAIMED, ids=lambda problem: problem.key)
def test_every_cut_on_tensor_cores_is_right(runner: Any, problem: ConvProblem) -> None:
    from conv_advisor.kernels.cuda.border import translated
    from conv_advisor.kernels.cuda.implicit_gemm_tensor.launch import launch as launch_cut

    if not has_clusters(runner.device):
        pytest.skip("the device has no clusters")
    operands = runner.make_operands(problem, 0)
    for cut in choice.expected(problem, runner.device):
        with translated():
            launch = launch_cut(problem, runner.device, cut)
        error = runner.first_run(problem, launch, operands).max_error
        assert error <= tolerance(problem), cut
