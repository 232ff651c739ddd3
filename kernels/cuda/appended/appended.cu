// The epilogue as a kernel of its own, for variants that cannot fuse it: y = activation(y + bias + residual).
//
//   tensors      y and residual (N,K,P,Q) or (N,P,Q,K), bias (K); y is read and written in place
//   accuracy     y has been rounded once before, and is rounded again here
//   work         a thread computes 16 bytes of y: with one vector of each tensor if they belong to one filter (nchw) or to
//                aligned neighbouring filters (nhwc), else element by element
//   grid, block  vectors of y in memory order, 256 a block
//   limits       none
//   source       epilogue.cuh

#include "epilogue.cuh"
#include "division.cuh"
#include "overlap.cuh"

#define VECTOR ((int)(16 / sizeof(Storage)))

struct __align__(16) Outputs {
    Storage values[VECTOR];
};

// inner: elements of one filter that are neighbours, 1 in nhwc and P Q in nchw.
extern "C" __global__ void __launch_bounds__(256)
    appended(Storage* __restrict__ y EPILOGUE, unsigned elements, int K, int inner, unsigned filters_magic,
             unsigned filters_shift, unsigned inner_magic, unsigned inner_shift) {
    wait_for_kernel_ahead();
    const unsigned begin = (blockIdx.x * blockDim.x + threadIdx.x) * VECTOR;
    if (begin >= elements) return;
    const Epilogue epilogue = EPILOGUE_OF(y);
    Storage* const target = y + begin;
    unsigned within = begin;
    unsigned k = take_quotient(within, inner, inner_magic, inner_shift);
    take_quotient(k, K, filters_magic, filters_shift);
    const auto next = [&] {
        if (++within < (unsigned)inner) return;
        within = 0;
        if (++k == (unsigned)K) k = 0;
    };
    if (elements - begin < VECTOR) {
        for (unsigned e = 0; e < elements - begin; ++e, next()) target[e] = narrow(epilogue.of(widen(target[e]), k, target + e));
        return;
    }
    Outputs outputs = *(const Outputs*)target;
    float sums[VECTOR];
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) sums[e] = widen(outputs.values[e]);
    if (!BIAS || inner % VECTOR == 0) {
        epilogue.apply(sums, k, target);
    } else if (inner == 1 && K % VECTOR == 0) {
        epilogue.apply<true>(sums, k, target);
    } else {
#pragma unroll
        for (int e = 0; e < VECTOR; ++e, next()) sums[e] = epilogue.of(sums[e], k, target + e);
    }
#pragma unroll
    for (int e = 0; e < VECTOR; ++e) outputs.values[e] = narrow(sums[e]);
    *(Outputs*)target = outputs;
}
