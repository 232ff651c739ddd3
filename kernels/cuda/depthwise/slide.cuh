// The sliding of a thread over rows of x: after depthwise.cuh, with FILTER_R, FILTER_S, STRIDE, DILATION, TP and TQ.

// tiles times TP x TQ outputs of COUNT channels below one another. load(row, values) gives COLUMNS inputs of a row, of
// which at(value, e) is channel e; weight(e, tap) is its filter's; store(row, sums) takes the TQ outputs of a row.
// Rows that a tile shares with the one below it stay in registers.
template <int COUNT, class Value, class At, class Weight, class Load, class Store>
__device__ __forceinline__ void slide(int tiles, At at, Weight weight, Load load, Store store) {
    Value kept[OVERLAP + 1][COLUMNS];
#pragma unroll
    for (int i = 0; i < OVERLAP; ++i) load(i, kept[i]);
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
        float sum[TP][TQ][COUNT] = {};
        Value below[OVERLAP + 1][COLUMNS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            Value value[COLUMNS];
            if (i >= OVERLAP) load(tile * TP * STRIDE + i, value);
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) {
                if (i < OVERLAP) value[column] = kept[i][column];
                if (i >= TP * STRIDE) below[i - TP * STRIDE][column] = value[column];
            }
#pragma unroll
            for (int r = 0; r < FILTER_R; ++r) {
                const int down = i - r * DILATION;
                if (down < 0 || down % STRIDE || down / STRIDE >= TP) continue;
#pragma unroll
                for (int s = 0; s < FILTER_S; ++s) {
#pragma unroll
                    for (int q = 0; q < TQ; ++q) {
#pragma unroll
                        for (int e = 0; e < COUNT; ++e)
                            sum[down / STRIDE][q][e] +=
                                at(value[q * STRIDE + s * DILATION], e) * weight(e, r * FILTER_S + s);
                    }
                }
            }
            const int done = i - (FILTER_R - 1) * DILATION;
            if (done >= 0 && done % STRIDE == 0) store(tile * TP + done / STRIDE, sum[done / STRIDE]);
        }
#pragma unroll
        for (int i = 0; i < OVERLAP; ++i) {
#pragma unroll
            for (int column = 0; column < COLUMNS; ++column) kept[i][column] = below[i][column];
        }
    }
}
