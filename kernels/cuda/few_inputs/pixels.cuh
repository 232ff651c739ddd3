// Part of few_inputs.cu, few_inputs_float32.cu and few_inputs_wgmma.cu: how a tile's 16 neighbouring pixels map to GEMM rows.
//
//   layouts      -DIS_NHWC=1; 0: NCHW, and with -DIS_PAIR=1 a thread's two pixels are neighbours, stored together: rows of y have
//                even length, and the pixels are close enough in x to avoid bank conflicts

#define SECOND_PIXEL (IS_PAIR ? 1 : 8)  // of a thread, behind the first
__device__ __forceinline__ int first_pixel() { return threadIdx.x % 32 / 4 * (IS_PAIR ? 2 : 1); }
__device__ __forceinline__ int pixel_of_row(int row) { return IS_PAIR ? row % 8 * 2 + row / 8 : row; }
