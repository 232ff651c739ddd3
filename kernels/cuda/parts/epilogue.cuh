// The epilogue: y = activation(convolution + bias + residual), in float32, before the one rounding to y's type.
//
//   defines      BIAS, RESIDUAL: 1 if there is one; ACTIVATION: one of ACTIVATION_*. Without them a kernel has the same
//                parameters and code as without this header
//   tensors      bias (K); residual with the shape, layout and type of y
//   to use it    put EPILOGUE after y in a kernel's parameters, declare `const Epilogue epilogue = EPILOGUE_OF(y);`, and
//                store epilogue.of(sum, filter, target) at `target` in y
//   accuracy     against float64, in units of the larger of 1 and |value|: 3e-7; tests/kernels/test_cuda_epilogue.py, ..._gpu.py

#define ACTIVATION_NONE 0
#define ACTIVATION_RELU 1
#define ACTIVATION_RELU6 2
#define ACTIVATION_LEAKY_RELU 3
#define ACTIVATION_SILU 4
#define ACTIVATION_GELU 5
#define ACTIVATION_GELU_TANH 6
#define ACTIVATION_HARDSWISH 7
#define ACTIVATION_SIGMOID 8

#ifndef BIAS
#define BIAS 0
#endif
#ifndef RESIDUAL
#define RESIDUAL 0
#endif
#ifndef ACTIVATION
#define ACTIVATION ACTIVATION_NONE
#endif
#define HAS_EPILOGUE (BIAS || RESIDUAL || ACTIVATION)

#if BIAS && RESIDUAL
#define EPILOGUE , const Storage *__restrict__ bias, const Storage *__restrict__ residual
#define EPILOGUE_OF(y) Epilogue(bias, residual, y)
#elif BIAS
#define EPILOGUE , const Storage *__restrict__ bias
#define EPILOGUE_OF(y) Epilogue(bias, nullptr, nullptr)
#elif RESIDUAL
#define EPILOGUE , const Storage *__restrict__ residual
#define EPILOGUE_OF(y) Epilogue(nullptr, residual, y)
#else
#define EPILOGUE
#define EPILOGUE_OF(y) Epilogue(nullptr, nullptr, nullptr)
#endif

// value / (1 + exp(-gate)). The quotient and the exponential are the special function unit's: rounded to the nearest they took
// longer than storing y.
__device__ __forceinline__ float gated(float value, float gate) {
#ifdef __CUDA_ARCH__
    return __fdividef(value, 1.0f + __expf(-gate));
#else
    return value / (1.0f + expf(-gate));
#endif
}

// The larger or smaller, and what is not a number if one is not.
__device__ __forceinline__ float at_least(float value, float least) {
#ifdef __CUDA_ARCH__
    asm("max.NaN.f32 %0, %0, %1;" : "+f"(value) : "f"(least));
    return value;
#else
    return value < least ? least : value;
#endif
}
__device__ __forceinline__ float at_most(float value, float most) {
#ifdef __CUDA_ARCH__
    asm("min.NaN.f32 %0, %0, %1;" : "+f"(value) : "f"(most));
    return value;
#else
    return value > most ? most : value;
#endif
}

// What is not a number stays so.
__device__ __forceinline__ float activated(float value) {
#if ACTIVATION == ACTIVATION_RELU
    return at_least(value, 0.0f);
#elif ACTIVATION == ACTIVATION_RELU6
    return at_most(at_least(value, 0.0f), 6.0f);
#elif ACTIVATION == ACTIVATION_LEAKY_RELU
    return at_least(value, 0.01f * value);
#elif ACTIVATION == ACTIVATION_SILU
    return gated(value, value);
#elif ACTIVATION == ACTIVATION_GELU
    return 0.5f * value * (1.0f + erff(value * 0.70710678f));
#elif ACTIVATION == ACTIVATION_GELU_TANH
    // (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)), with u = sqrt(2 / pi) (value + 0.044715 value^3).
    return gated(value, 1.5957691f * (value + 0.044715f * value * value * value));
#elif ACTIVATION == ACTIVATION_HARDSWISH
    return value * at_most(at_least(fmaf(value, 1.0f / 6.0f, 0.5f), 0.0f), 1.0f);
#elif ACTIVATION == ACTIVATION_SIGMOID
    return gated(1.0f, value);
#else
    return value;
#endif
}

// COUNT neighbours in memory, whose place is a multiple of their size or of 16 bytes.
template <int COUNT>
__device__ __forceinline__ void read_neighbours(float (&values)[COUNT], const Storage* from) {
    constexpr int bytes = COUNT * (int)sizeof(Storage);
    __align__(16) Storage elements[COUNT];
    if constexpr (bytes % 16 == 0) {
#pragma unroll
        for (int i = 0; i < bytes / 16; ++i) ((uint4*)elements)[i] = __ldg((const uint4*)from + i);
    } else if constexpr (bytes == 8) {
        *(uint2*)elements = __ldg((const uint2*)from);
    } else if constexpr (bytes == 4) {
        *(unsigned*)elements = __ldg((const unsigned*)from);
    } else {
        static_assert(bytes == 2, "one or a power of two");
        *(unsigned short*)elements = __ldg((const unsigned short*)from);
    }
#pragma unroll
    for (int e = 0; e < COUNT; ++e) values[e] = widen(elements[e]);
}

class Epilogue {
   public:
    __device__ __forceinline__ Epilogue(const Storage* bias, const Storage* residual, const Storage* y) {
#if BIAS
        bias_ = bias;
#endif
#if RESIDUAL
        // The residual lies as y does, so its elements are all equally far from those of y.
        from_y_ = (const char*)residual - (const char*)y;
#endif
        (void)bias, (void)residual, (void)y;
    }

    // What is stored at `target`, in y, as an output of `filter`.
    __device__ __forceinline__ float of(float sum, int filter, const Storage* target) const {
        float one[1] = {sum};
        apply(one, filter, target);
        return one[0];
    }
    // Of COUNT neighbours in y from `target` on: of one filter, or where IS_ACROSS of as many from this one on.
    template <bool IS_ACROSS = false, int COUNT>
    __device__ __forceinline__ void apply(float (&sums)[COUNT], int filter, const Storage* target) const {
        float bias[IS_ACROSS ? COUNT : 1];
        read_bias(bias, filter);
        apply(sums, bias, target);
    }
    // The same for a kernel that has read the bias itself.
    template <int COUNT, int BIASES>
    __device__ __forceinline__ void apply(float (&sums)[COUNT], const float (&bias)[BIASES], const Storage* target) const {
        float residual[COUNT];
        read_residual(residual, target);
        add(sums, residual);
        end(sums, bias);
    }
    // The same for a kernel that has read the residual itself.
    template <bool IS_ACROSS = false, int COUNT>
    __device__ __forceinline__ void apply_with(float (&sums)[COUNT], int filter, const float (&residual)[COUNT]) const {
        add(sums, residual);
        end<IS_ACROSS>(sums, filter);
    }
    // The same for a kernel that has added the residual itself.
    template <bool IS_ACROSS = false, int COUNT>
    __device__ __forceinline__ void end(float (&sums)[COUNT], int filter) const {
        float bias[IS_ACROSS ? COUNT : 1];
        read_bias(bias, filter);
        end(sums, bias);
    }
    // The same for a kernel that has read the bias too.
    template <int COUNT, int BIASES>
    __device__ __forceinline__ void end(float (&sums)[COUNT], const float (&bias)[BIASES]) const {
        static_assert(BIASES == 1 || BIASES == COUNT, "of one filter, or of as many");
#if BIAS
#pragma unroll
        for (int e = 0; e < COUNT; ++e) sums[e] += bias[e % BIASES];
#endif
        activate(sums);
        (void)bias;
    }
    // The residual of COUNT neighbours in y from `target` on; zeros where there is none.
    template <int COUNT>
    __device__ __forceinline__ void read_residual(float (&residual)[COUNT], const Storage* target) const {
#if RESIDUAL
        read_neighbours(residual, (const Storage*)((const char*)target + from_y_));
#else
#pragma unroll
        for (int e = 0; e < COUNT; ++e) residual[e] = 0.0f;
#endif
        (void)target;
    }
    // The bias of BIASES filters from this one on; zeros where there is none. Where a thread ends several times it reads it
    // once: the compiler reads it again where outputs may be missing.
    template <int BIASES>
    __device__ __forceinline__ void read_bias(float (&bias)[BIASES], int filter) const {
#if BIAS
        read_neighbours(bias, bias_ + filter);
#else
#pragma unroll
        for (int e = 0; e < BIASES; ++e) bias[e] = 0.0f;
#endif
        (void)filter;
    }
    // Two neighbours of the bias of a two-byte type in one register: asked for here, for `apply_given` much later. In C++ the
    // compiler would move the load to where it is used.
    __device__ __forceinline__ unsigned bias_ahead(int filter) const {
        unsigned pair = 0;
#if BIAS && defined(__CUDA_ARCH__)
        asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(pair) : "l"(bias_ + filter));
#elif BIAS
        memcpy(&pair, bias_ + filter, 4);
#endif
        (void)filter;
        return pair;
    }
    // One element of the bias of a two-byte type as two neighbours, asked for here like those of `bias_ahead`.
    __device__ __forceinline__ unsigned bias_twice_ahead(int filter) const {
        unsigned short one = 0;
#if BIAS && defined(__CUDA_ARCH__)
        asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(one) : "l"(bias_ + filter));
#elif BIAS
        memcpy(&one, bias_ + filter, 2);
#endif
        (void)filter;
        return one | (unsigned)one << 16;
    }
    // The same as `apply_with` for two neighbours, and pairs that the kernel has read of residual and bias.
    __device__ __forceinline__ void apply_given(float (&sums)[2], unsigned residual, unsigned bias) const {
        const Storage *const added = (const Storage*)&residual, *const biased = (const Storage*)&bias;
#pragma unroll
        for (int e = 0; e < 2; ++e) {
#if RESIDUAL
            sums[e] += widen(added[e]);
#endif
#if BIAS
            sums[e] += widen(biased[e]);
#endif
        }
        activate(sums);
        (void)added, (void)biased;
    }

   private:
    template <int COUNT>
    __device__ __forceinline__ static void add(float (&sums)[COUNT], const float (&residual)[COUNT]) {
#if RESIDUAL
#pragma unroll
        for (int e = 0; e < COUNT; ++e) sums[e] += residual[e];
#endif
        (void)sums, (void)residual;
    }
    template <int COUNT>
    __device__ __forceinline__ static void activate(float (&sums)[COUNT]) {
#if ACTIVATION
#pragma unroll
        for (int e = 0; e < COUNT; ++e) sums[e] = activated(sums[e]);
#endif
        (void)sums;
    }

#if BIAS
    const Storage* bias_;
#endif
#if RESIDUAL
    long long from_y_;  // bytes
#endif
};
