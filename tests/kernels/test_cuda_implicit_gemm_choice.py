"""Which kernel, tile and cluster an implicit GEMM takes; pure arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conv_advisor.data.measurement import Device
from conv_advisor.data.problem import ConvProblem, DType
from conv_advisor.kernels.cuda.implicit_gemm import plan as other
from conv_advisor.kernels.cuda.implicit_gemm.choice import choose_cut
from conv_advisor.kernels.cuda.implicit_gemm_tensor import cut as plans
from conv_advisor.kernels.cuda.implicit_gemm_tensor import plan as choice
from conv_advisor.kernels.cuda.implicit_gemm_tensor.menu import Tile
from conv_advisor.kernels.cuda.parts.multiprocessor import HOPPER_BLOCK_BYTES

H200 = Device(id="nvidia-h200", name="NVIDIA H200", kind="cuda", capability="9.0", processors=132)
A100 = Device(id="nvidia-a100", name="NVIDIA A100", kind="cuda", capability="8.0", processors=108)

problems = st.builds(
    lambda size, n, r, k, c, dtype: ConvProblem(n, c, size, size, k, r, r, pad_h=r // 2, pad_w=r // 2, dtype=dtype),
    *(st.integers(1, 60), st.integers(1, 256), st.sampled_from((1, 3, 5, 7)), st.integers(1, 600), st.integers(1, 600)),
    st.sampled_from(list(DType)),
)


@pytest.mark.parametrize("dtype", DType)
def test_a_deep_layer_of_a_few_pixels_is_split_over_a_cluster(dtype: DType) -> None:
    cut = choose_cut(ConvProblem.parse("7-1-1-32-832", dtype=dtype), H200)
    assert isinstance(cut.tile, Tile)
    assert cut.cluster > 4


def test_without_clusters_the_other_kernel_is_chosen() -> None:
    problem = ConvProblem.parse("7-1-1-32-832")
    assert choice.plan_cut(problem, A100) is None
    assert choose_cut(problem, A100) == other.plan_cut(problem, A100)


def test_a_window_that_is_too_large_is_left_to_the_other_kernel() -> None:
    far = ConvProblem(1, 8, 60, 60, 8, 3, 3, pad_h=25, pad_w=25, dilation_h=25, dilation_w=25)
    assert choose_cut(far, H200) == other.plan_cut(far, H200)


@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_a_cut_covers_the_outputs_and_is_compiled(problem: ConvProblem) -> None:
    cut = choice.plan_cut(problem, H200)
    if cut is None:
        return
    in_x, in_y, in_z = plans.grid_for(cut, problem)
    assert in_x % cut.cluster == 0
    assert in_x // cut.cluster * cut.tile.bn >= problem.p * problem.q
    assert in_y == problem.n
    assert in_z * cut.tile.bm >= problem.k
    assert cut.cluster <= plans.stages_of(cut.tile, problem)
    assert plans.shared_bytes(cut, problem) <= HOPPER_BLOCK_BYTES
    assert plans.defines_for(cut, problem) in choice.definitions(problem.dtype)


@settings(deadline=None, max_examples=30)
@given(problem=problems)
def test_the_model_chooses_what_it_expects_to_be_fastest(problem: ConvProblem) -> None:
    chosen = choose_cut(problem, H200)
    mine = choice.plan_cut(problem, H200)
    theirs = min(other.expected(problem, H200).values())
    if mine is None:
        assert chosen == other.plan_cut(problem, H200)
        return
    expected = choice.expected(problem, H200)
    assert 0 < expected[mine] == min(expected.values())
    assert isinstance(chosen.tile, Tile) == (expected[mine] <= theirs)
