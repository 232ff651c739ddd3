// Implicit GEMM for few input channels in float32 or tf32 on tensor cores: a tile's rows of x are staged unchanged in shared
// memory, and a table gives the offset of each element of a window.
//
//   tensors      -DIS_NHWC=1: x (N,H,W,C) with C of 1 to 4, weight (K,R,S,C) with K a multiple of 8, y (N,P,Q,K); -DIS_NHWC=0:
//                x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q)
//   GEMM         gemm_k = R S C in the weight's order, in steps of 8. GEMM rows are 16 neighbouring pixels of a row of y; columns
//                are FILTERS filters, ordered so that a thread's accumulators of two tiles are four neighbours (outputs.cuh)
//   versions     those of few_inputs_float32.cu, by wgmma: a warpgroup multiplies, and accumulators restart every two steps
//   weight       packed once per block in core matrices, both parts of float32
//   stages       rows of x with halo and padding (NCHW: of each plane), copied unchanged; the next tile's are loaded while this
//                one is stored
//   grid, block  persistent blocks take tiles in turn; 32 WARPS threads, registers for BLOCKS blocks per multiprocessor; tiles of
//                tile_p rows x tile_q pixels, chosen by plan.py
//   limits       compute capability 9.0 (sm_90a); groups 1, dilation 1; float32: infinities become NaN; deterministic
//   source       PTX ISA 8.0, wgmma; Ootomo and Yokota, arXiv:2203.03341

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "tf32.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#include "fragments.cuh"

#include "pixels.cuh"
#include "float32_windows.cuh"
#define INSTRUCTION_N FILTERS
#include "wgmma.cuh"
#include "wgmma_products.cuh"
#include "outputs.cuh"
#include "float32_kernel.cuh"
