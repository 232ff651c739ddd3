"""Kernels timed one by one on a GPU: which there are, in order, and that their times are those of kernels."""

from __future__ import annotations

import pytest

from conv_advisor.data.problem import ConvProblem
from conv_advisor.kernels import catalog
from conv_advisor.kernels.bench import open_runner
from conv_advisor.kernels.variant import DEFAULT_WORKSPACE_LIMIT_BYTES

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def runner():
    return open_runner("cuda:0")


def found(runner, layer: str, variant: str):
    from conv_advisor.kernels.cuda.stages import stages

    problem = ConvProblem.parse(layer)
    launch = runner.prepare(catalog.get(variant), problem, DEFAULT_WORKSPACE_LIMIT_BYTES)
    operands = runner.make_operands(problem, 0)
    first = runner.first_run(problem, launch, operands)
    return stages(launch, operands, first.launch_ms)


def test_the_two_stages_of_cuconv_come_in_order(runner):
    products, planes = found(runner, "7-1-3-384-192", "cuda.cuconv")
    assert (products.name, planes.name) == ("cuconv_scalar_products", "cuconv_sum_planes")
    assert products.blocks >= 384 // 16 * 9
    assert 0 < products.occupancy <= 1
    assert products.time_ms > planes.time_ms > 0


def test_a_copy_is_a_stage_of_its_own(runner):
    copy, kernel = found(runner, "14-1-3-16-8", "cuda.direct_constant")
    assert (copy.name, copy.blocks) == ("memcpy", 0)
    assert kernel.name == "direct_constant"


def test_kernels_of_cudnn_have_names_too(runner):
    names = [stage.name for stage in found(runner, "14-1-3-256-128", "cudnn.winograd_nonfused")]
    assert len(names) >= 3
    assert all(names)
