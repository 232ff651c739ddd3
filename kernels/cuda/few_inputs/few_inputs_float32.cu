// Implicit GEMM for few input channels in float32 or tf32 on tensor cores: a tile's rows of x are staged unchanged in shared
// memory, and a table gives the offset of each element of a window.
//
//   tensors      -DIS_NHWC=1: x (N,H,W,C) with C of 1 to 4, weight (K,R,S,C) with K a multiple of 8, y (N,P,Q,K); -DIS_NHWC=0:
//                x (N,C,H,W), weight (K,C,R,S), y (N,K,P,Q)
//   GEMM         gemm_k = R S C in the weight's order, in steps of 8. GEMM rows are 16 neighbouring pixels of a row of y; columns
//                are FILTERS filters, ordered so that a thread's accumulators of two tiles are four neighbours (outputs.cuh)
//   versions     -DSPLIT=1: 3xTF32, with accumulators that restart from zero at each step and are added up in registers
//                (fragments.cuh); -DSPLIT=0: tf32, both operands rounded to nearest. The tile: MT tiles of 16 pixels
//                and NT of 8 filters of each of WARPS warps, which multiply by mma.sync
//   weight       packed once per block in fragment order, both parts of float32 side by side: 16-byte loads
//   stages       rows of x with halo and padding (NCHW: of each plane), copied unchanged; the next tile's are loaded while this
//                one is stored
//   grid, block  persistent blocks take tiles in turn; 32 WARPS threads, registers for BLOCKS blocks per multiprocessor; tiles of
//                tile_p rows x tile_q pixels, chosen by plan.py
//   limits       groups 1, dilation 1; float32: infinities become NaN; deterministic
//   source       PTX ISA 8.0, mma; Ootomo and Yokota, arXiv:2203.03341

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "tf32.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"
#ifdef __CUDA_ARCH__
#include "fragments.cuh"
#endif

#include "pixels.cuh"
#include "float32_windows.cuh"
#include "float32_products.cuh"
#include "outputs.cuh"
#include "float32_kernel.cuh"
