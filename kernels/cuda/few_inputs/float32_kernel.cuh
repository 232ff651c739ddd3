// Shared by few_inputs_float32.cu and few_inputs_wgmma.cu: everything but their products.

// Which filter of the block a column of the products is.
__device__ __forceinline__ int filter_of(int column) {
    return column / 16 * 16 + column % 8 / 2 * VECTOR + column / 8 % 2 * 2 + column % 2;
}

// The block's weight as threads hold it, zeros behind gemm_k and where no filter is.
__device__ __forceinline__ void pack_weight(uint4* to, const float* __restrict__ weight, int first_filter, int K, int gemm_k,
                                            int steps) {
#pragma unroll 4
    for (int i = threadIdx.x; i < FILTERS * STEP * steps; i += THREADS) {
        const int column = i / (STEP * steps), k = i - column * (STEP * steps), filter = first_filter + filter_of(column);
        keep_weight(to, column, k, k < gemm_k && filter < K ? __ldg(weight + (size_t)filter * gemm_k + k) : 0.0f);
    }
}

// In bytes, where each element of a window lies behind its first: a thread's two of a step are neighbours.
__device__ __forceinline__ void list_offsets(int* offsets, int gemm_k, int steps, int row_elements, int R, int rows, int pitch) {
    for (int k = threadIdx.x; k < STEP * steps; k += THREADS) {
        const int row = k < gemm_k ? k / row_elements : 0, rest = k < gemm_k ? k - row * row_elements : 0;
        offsets[k / 8 * 8 + k % 4 * 2 + k / 4 % 2] = 4 * ((row / R * rows + row % R) * pitch + rest);
    }
}

// Rows from h0 on of each plane, from element w0 on, COUNT elements a copy; zeros beside the image.
template <int COUNT>
__device__ __forceinline__ void stage(float* staged, const float* __restrict__ image, int planes, int h0, int w0, int rows,
                                      int pitch, int H, int width) {
    const int copies = pitch / COUNT;
#pragma unroll 1
    for (int i = threadIdx.x; i < planes * rows * copies; i += THREADS) {
        const int row = i / copies, at = (i - row * copies) * COUNT, plane = IS_NHWC ? 0 : row / rows;
        const int h = h0 + row - plane * rows, w = w0 + at;
        const bool is_in_image = is_inside(h, H) && is_inside(w, width);
        copy_async<4 * COUNT>(staged + row * pitch + at, image + (is_in_image ? (plane * H + h) * width + w : 0),
                              is_in_image ? 4 * COUNT : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
    few_inputs_float32(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE, SHAPE,
                       int tile_p, int tile_q_bits, int tiles_p, int tiles_q, int tiles_f, int rows, int pitch) {
    extern __shared__ __align__(16) float memory[];
    const int gemm_k = R * S * C, chain = STEP * STEPS_OF_CHAIN, steps = (gemm_k + chain - 1) / chain * STEPS_OF_CHAIN;
    const int inner = IS_NHWC ? C : 1, planes = IS_NHWC ? 1 : C;
    uint4* const weights = (uint4*)memory;
    int* const offsets = (int*)(weights + steps * LOADS_OF_STEP * 32);
    float* const staged = (float*)(offsets + STEP * steps);
    const int first_filter = blockIdx.x % tiles_f * FILTERS, blocks = gridDim.x / tiles_f, tiles = N * tiles_p * tiles_q;
    const int tile_q = 1 << tile_q_bits, warp = threadIdx.x / 32, lead = -pad_w * inner & 3;

    // Where the window of the lane's first pixel of each tile of the warp begins.
    const char* window[MT];
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        const int pixel = (warp * MT + i) * 16 + first_pixel(), p = pixel >> tile_q_bits, q = pixel & tile_q - 1;
        window[i] = (const char*)(staged + p * stride_h * pitch + q * stride_w * inner + lead);
    }

    const auto stage_tile = [&](int tile) {
        const int line = tile / tiles_q, image = line / tiles_p;
        const int h = (line - image * tiles_p) * tile_p * stride_h - pad_h;
        const int w = ((tile - line * tiles_q) * tile_q * stride_w - pad_w) * inner - lead;
        const float* const from = x + (size_t)image * H * W * C;
        if (W * inner % 4 == 0)
            stage<4>(staged, from, planes, h, w, rows, pitch, H, W * inner);
        else
            stage<1>(staged, from, planes, h, w, rows, pitch, H, W * inner);
        commit_copies();
    };

    wait_for_kernel_ahead();
    int tile = blockIdx.x / tiles_f;
    if (tile < tiles) stage_tile(tile);
    pack_weight(weights, weight, first_filter, K, gemm_k, steps);
    publish_weight();
    list_offsets(offsets, gemm_k, steps, S * inner, R, rows, pitch);
    for (; tile < tiles; tile += blocks) {
        wait_for_all_copies_but<0>();
        __syncthreads();
        float sum[MT][NT][4] = {};
        multiply_window(sum, window, 4 * (SECOND_PIXEL * inner) * stride_w, weights, offsets, steps);
#if SPLIT
        restore_cut(sum, raised_by(STEPS_OF_CHAIN));
#endif
        __syncthreads();
        if (tile + blocks < tiles) stage_tile(tile + blocks);

        const Epilogue epilogue = EPILOGUE_OF(y);
        const int line = tile / tiles_q, image = line / tiles_p;
        const int p0 = (line - image * tiles_p) * tile_p, q0 = (tile - line * tiles_q) * tile_q;
        Storage* const outputs = y + (size_t)image * K * P * Q;
        store_sums(epilogue, sum, outputs, first_filter, K, P, Q, [&](int of_warp) {
            const int pixel = warp * (MT * 16) + of_warp;
            return Place{p0 + (pixel >> tile_q_bits), q0 + (pixel & tile_q - 1)};
        });
    }
}
