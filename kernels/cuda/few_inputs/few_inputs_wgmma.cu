// Implicit GEMM of few input channels of float32 on tensor cores: a tile's rows of x lie in shared memory as they lie in the
// image, and a table says where each element of a window is.
//
//   tensors      -DIS_NHWC=1: x (N,H,W,C) with C of 1 to 4, weight (K,R,S,C) with K a multiple of 8, y (N,P,Q,K); -DIS_NHWC=0:
//                x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q)
//   GEMM         gemm_k = R S C in the order in which the weight has it, in steps of 8. Rows of the products are pixels, 16
//                neighbours of a row of y; columns are filters, FILTERS of them, in the order in which a thread's sums of two
//                tiles are four neighbours (outputs.cuh)
//   versions     as of few_inputs_float32.cu, for wgmma: four warps multiply together, and sums begin at zero every two steps
//   weight       packed once a block in core matrices, both parts of float32
//   stages       rows of x, halo and padding with them, of NCHW each plane's, copied as they are; the next tile's while this
//                one's sums are stored
//   grid, block  blocks stay and take tiles in turns; 32 WARPS threads, BLOCKS blocks' registers a multiprocessor; tiles are of
//                tile_p rows of tile_q pixels, chosen by plan.py
//   limits       compute capability 9.0 (sm_90a); groups 1, dilation 1; float32: what is infinite becomes NaN; the same sums in
//                the same order every time
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
