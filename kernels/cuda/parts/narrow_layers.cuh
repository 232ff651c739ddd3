// What kernels of narrow layers share: 16-byte chunks of channels in shared memory, and a step's products with a weight that has a
// row a column. Include after asynchronous.cuh, half_fragments.cuh and the tile's macros.
//
//   versions     -DALIGN: bytes of a copy, as C allows; 2: element by element, not asynchronously. The tile: MT tiles of 16 pixels
//                and NT of 8 columns a warp

#define CHUNK 8              // channels of 16 bytes
#define PIECES (16 / ALIGN)  // copies of a chunk

// A chunk of which `left` channels are there, none where that is not positive; zeros behind them.
__device__ __forceinline__ void copy_chunk(unsigned char* to, const Storage* from, const Storage* any, int left) {
#if ALIGN == 2
    unsigned words[4] = {};
#pragma unroll
    for (int i = 0; i < CHUNK; ++i)
        if (i < left) words[i / 2] |= (unsigned)__ldg((const unsigned short*)from + i) << 16 * (i % 2);
    *(uint4*)to = {words[0], words[1], words[2], words[3]};
    (void)any;
#else
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece) {
        const int ahead = piece * (CHUNK / PIECES);
        const bool is_there = ahead < left;
        copy_async<ALIGN>(to + piece * ALIGN, is_there ? from + ahead : any, is_there ? ALIGN : 0);
    }
#endif
}

// A step's products: `weight` is the step's first chunk in the first column's row, for lanes of odd eighths the chunk behind it.
__device__ __forceinline__ void multiply_by_weight(float (&sum)[MT][NT][4], const unsigned (&a)[MT][4], Address weight, int pitch) {
    const int lane = threadIdx.x % 32;
    unsigned b[NT][2];
#pragma unroll
    for (int j = 0; j + 2 <= NT; j += 2) {
        unsigned both[4];
        load_matrices(both, weight + (j * 8 + lane % 8 + lane / 16 * 8) * pitch);
        b[j][0] = both[0], b[j][1] = both[1], b[j + 1][0] = both[2], b[j + 1][1] = both[3];
    }
    if constexpr (NT % 2) load_matrices(b[NT - 1], weight + ((NT - 1) * 8 + lane % 8) * pitch);
#pragma unroll
    for (int i = 0; i < MT; ++i) {
#pragma unroll
        for (int j = 0; j < NT; ++j) multiply_fragments(sum[i][j], a[i], b[j]);
    }
}
