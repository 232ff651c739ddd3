// The prologue: x becomes max(x * scale + shift, 0) by channel, as a batch norm and a ReLU ahead have it. Part of implicit_gemm_nhwc.cu.
//
//   tensors      prologue (2,C), scale and then shift, float32; x may be the first C of x_pitch channels
//   how          in shared memory: a thread changes the 16 bytes that it has copied, once they are there and before others read
//                them. Its rows have the same channels, so it reads scale and shift once a stage. In float32, rounded once to
//                x's type, as a kernel of its own would do
//   limits       channels innermost, 1x1 without padding: zeros around an image would have to stay zeros

struct Prologue {
    float scale[VECTOR], shift[VECTOR];

    // Of the channels of one chunk of gemm_k.
    __device__ __forceinline__ void read(const float* prologue, int chunk, int chunks) {
        const float* const from = prologue + (chunk < chunks ? chunk : 0) * VECTOR;
#pragma unroll
        for (int e = 0; e < VECTOR; e += 4) {
            *(float4*)(scale + e) = __ldg((const float4*)(from + e));
            *(float4*)(shift + e) = __ldg((const float4*)(from + chunks * VECTOR + e));
        }
    }
    // Rows beyond the last pixel change too: no output is made of them. Chunks beyond the last meet filters of zeros.
    __device__ __forceinline__ void apply(Address rows) const {
#pragma unroll
        for (int i = 0; i < X_ROWS; ++i) {
            if (BP % ROW_STEP && threadIdx.x / CHUNKS + i * ROW_STEP >= BP) continue;
            __align__(16) Storage values[VECTOR];
            uint4* const all = (uint4*)values;
            *all = load_shared(rows + i * ROW_STEP * ROW_BYTES);
#pragma unroll
            for (int e = 0; e < VECTOR; e += 2) {
                const float first = of(widen(values[e]), e), second = of(widen(values[e + 1]), e + 1);
#ifdef STORAGE_FLOAT32
                values[e] = first, values[e + 1] = second;
#else
                ((unsigned*)values)[e / 2] = narrow_pair(first, second);
#endif
            }
            store_shared(rows + i * ROW_STEP * ROW_BYTES, *all);
        }
    }

   private:
    // What is not a number stays so.
    __device__ __forceinline__ float of(float value, int e) const {
        const float moved = fmaf(value, scale[e], shift[e]);
        return moved < 0.0f ? 0.0f : moved;
    }
    static __device__ __forceinline__ uint4 load_shared(Address from) {
#ifdef __CUDA_ARCH__
        uint4 values;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(values.x), "=r"(values.y), "=r"(values.z), "=r"(values.w)
                     : "r"(from)
                     : "memory");
        return values;
#else
        return *(const uint4*)from;
#endif
    }
    static __device__ __forceinline__ void store_shared(Address to, const uint4& values) {
#ifdef __CUDA_ARCH__
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(values.x), "r"(values.y), "r"(values.z), "r"(values.w)
                     : "memory");
#else
        *(uint4*)to = values;
#endif
    }
};
