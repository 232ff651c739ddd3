// Depthwise convolution of nchw: each input plane has filters of its own, multiplier = K / C of them.
//
//   tensors      x (N,C,H,W), weight (K,1,R,S), y (N,K,P,Q); plane j of the N K of y comes of plane j / multiplier of x and
//                filter j % K
//   work         a block computes a run of whole planes, or a band of rows of one: either way one contiguous run of x and
//                one of y. A thread computes TP x TQ outputs of a plane, `repeats` times below one another, and slides
//                over their rows of x with the filter in registers; its neighbours in a warp have the next columns.
//   versions     STAGED 0: x and y from and to global memory
//                STAGED 1: the run of x comes to shared memory by copies of 16 bytes, whatever the width of a row
//                STAGED 2: the run of y leaves through shared memory too, in vectors of 16 bytes
//                PAIRS 1, 2: elements are loaded in twos, and stored so where STRIDE is 1; 2: of which the first is left of
//                those that the thread needs
//   grid, block  grid: runs of planes, bands of a plane fastest; any number of threads up to 256
//   limits       FILTER_R x FILTER_S, STRIDE and DILATION in both directions; STAGED: the runs within shared memory;
//                PAIRS: W even, and Q where STRIDE is 1; TQ x STRIDE even; pad_w even, or for 2 odd
//                several planes a block: all their rows, and a multiple of the multiplier
//   source       the layer: Howard et al.: MobileNets, arXiv:1704.04861

#include "clusters.cuh"
#include "asynchronous.cuh"
#include "division.cuh"
#include "depthwise.cuh"
#include "slide.cuh"
#include "epilogue.cuh"
#include "overlap.cuh"

#define VECTOR ((int)(16 / sizeof(Storage)))
#define SHIFT (PAIRS == 2 ? 1 : 0)
#define STEP (PAIRS ? 2 : 1)
#define STEP_OUT (PAIRS && STRIDE == 1 ? 2 : 1)
#define LOADS ((COLUMNS + SHIFT + STEP - 1) / STEP)

struct Divisors {
    unsigned bands_magic, bands_shift, multiplier_magic, multiplier_shift, filters_magic, filters_shift;
    unsigned strips_magic, strips_shift, tiles_q_magic, tiles_q_shift;
};

__device__ __forceinline__ int elements_beyond_alignment(const Storage* pointer) {
    return (int)(((size_t)pointer & 15) / sizeof(Storage));
}

// staged[i] = source[i] for i < count, both at the same distance from a multiple of 16 bytes.
__device__ __forceinline__ void stage_run(Storage* staged, const Storage* source, int skipped, int count) {
    const int end = skipped + count;
    for (int i = threadIdx.x * VECTOR; i < end; i += blockDim.x * VECTOR)
        copy_async<16>(staged - skipped + i, source - skipped + i, min(VECTOR, end - i) * (int)sizeof(Storage));
    commit_copies();
}

__device__ __forceinline__ void store_run(Storage* target, const Storage* staged, int skipped, int count) {
    const int end = skipped + count;
    for (int i = threadIdx.x * VECTOR; i < end; i += blockDim.x * VECTOR) {
        if (i >= skipped && i + VECTOR <= end) {
            *(Vector<VECTOR>*)(target - skipped + i) = *(const Vector<VECTOR>*)(staged - skipped + i);
        } else {
            for (int e = max(i, skipped); e < min(i + VECTOR, end); ++e) target[e - skipped] = staged[e - skipped];
        }
    }
}

// The outputs of a thread: plane and tile of the block's run, and the thread's filter.
struct Task {
    int plane, p0, q0;
    float filter[FILTER];
};

__device__ __forceinline__ Task read_task(unsigned index, const Storage* __restrict__ weight, unsigned first, int K,
                                          int strips, int tiles_q, int p_begin, int strip_rows, const Divisors& by) {
    Task task;
    const unsigned row = divide(index, by.tiles_q_magic, by.tiles_q_shift);
    const unsigned plane = divide(row, by.strips_magic, by.strips_shift);
    task.q0 = (index - row * tiles_q) * TQ;
    task.p0 = p_begin + (row - plane * strips) * strip_rows;
    task.plane = plane;
    unsigned k = first + plane;
    take_quotient(k, K, by.filters_magic, by.filters_shift);
    const Storage* const source = weight + k * FILTER;
#pragma unroll
    for (int i = 0; i < FILTER; ++i) task.filter[i] = widen(source[i]);
    return task;
}

extern "C" __global__ void __launch_bounds__(256, 1)
    depthwise_planes(const Storage* __restrict__ x, const Storage* __restrict__ weight, Storage* __restrict__ y EPILOGUE,
                     int NK, int H, int W, int K, int P, int Q, int pad_h, int pad_w, int planes, int rows, int repeats,
                     int multiplier, int slack, int shared_elements, unsigned bands_magic, unsigned bands_shift, unsigned multiplier_magic,
                     unsigned multiplier_shift, unsigned filters_magic, unsigned filters_shift, unsigned strips_magic,
                     unsigned strips_shift, unsigned tiles_q_magic, unsigned tiles_q_shift) {
    wait_for_kernel_ahead();
    extern __shared__ __align__(16) float shared[];
    const Divisors by = {bands_magic,   bands_shift,   multiplier_magic, multiplier_shift, filters_magic,
                         filters_shift, strips_magic, strips_shift,    tiles_q_magic,    tiles_q_shift};
    const int bands = (P + rows - 1) / rows;
    unsigned band = blockIdx.x;
    const unsigned first = take_quotient(band, bands, bands_magic, bands_shift) * planes;
    const int count = min(planes, (int)(NK - first));
    const int p_begin = band * rows, p_end = min(P, p_begin + rows);
    const int h_begin = bands == 1 ? 0 : min(H, max(0, p_begin * STRIDE - pad_h));
    const int h_end =
        bands == 1 ? H : max(h_begin, min(H, (p_end - 1) * STRIDE - pad_h + (FILTER_R - 1) * DILATION + 1));
    const unsigned first_in = divide(first, multiplier_magic, multiplier_shift);
    const int count_in = divide(count + multiplier - 1, multiplier_magic, multiplier_shift);

    const Storage* const source = x + ((size_t)first_in * H + h_begin) * W;
    Storage* const target = y + ((size_t)first * P + p_begin) * Q;
    const int loaded = bands == 1 ? count_in * H * W : (h_end - h_begin) * W;
    const int stored = count * (p_end - p_begin) * Q;
    const int skipped_in = elements_beyond_alignment(source), skipped_out = elements_beyond_alignment(target);
    Storage* const staged_in = (Storage*)shared + slack + skipped_in;
    Storage* const staged_out = (Storage*)shared + shared_elements + skipped_out;
    if constexpr (STAGED >= 1) stage_run(staged_in, source, skipped_in, loaded);

    const int strip_rows = repeats * TP, strips = (p_end - p_begin + strip_rows - 1) / strip_rows, tiles_q = (Q + TQ - 1) / TQ;
    const unsigned tasks = count * (unsigned)(strips * tiles_q);
    unsigned index = threadIdx.x;
    Task task;
    if (index < tasks) task = read_task(index, weight, first, K, strips, tiles_q, p_begin, strip_rows, by);
    if constexpr (STAGED >= 1) {
        wait_for_all_copies_but<0>();
        __syncthreads();
    }
    const Storage* const planes_in = STAGED >= 1 ? staged_in : source;
    Storage* const rows_out = STAGED == 2 ? staged_out : target;
    const Epilogue epilogue = EPILOGUE_OF(y);
    while (index < tasks) {
        const int plane_in = multiplier == 1 ? task.plane : divide(task.plane, multiplier_magic, multiplier_shift);
        Storage* const out = rows_out + (task.plane * (p_end - p_begin) + task.p0 - p_begin) * Q + task.q0;
#if HAS_EPILOGUE
        unsigned filter = first + task.plane;
        take_quotient(filter, K, filters_magic, filters_shift);
#endif
        const int taken = h_end - h_begin, h0 = task.p0 * STRIDE - pad_h - h_begin;
        const int w0 = task.q0 * STRIDE - pad_w - SHIFT;
        const Storage* const plane = planes_in + plane_in * H * W;
        // What is loaded in any case and then masked waits for no predicate. Shared memory has room around the run for
        // columns outside a plane; global memory may end there.
        unsigned mask[LOADS];
        int at[LOADS];
#pragma unroll
        for (int j = 0; j < LOADS; ++j) {
            mask[j] = mask_where(is_inside(w0 + j * STEP, W));
            at[j] = STAGED >= 1 ? w0 + j * STEP : max(0, min(w0 + j * STEP, W - STEP));
        }
        slide<1, float>(
            (min(strip_rows, p_end - task.p0) + TP - 1) / TP, [](float value, int) { return value; },
            [&](int, int tap) { return task.filter[tap]; },
            [&](int i, float(&value)[COLUMNS]) {
                const Storage* const row = plane + max(0, min(h0 + i, taken - 1)) * W;
                const unsigned is_row = mask_where(is_inside(h0 + i, taken));
                // Padding is multiplied too: zero times an infinite weight is NaN.
                Vector<STEP> loaded[LOADS];
#pragma unroll
                for (int j = 0; j < LOADS; ++j) loaded[j] = masked<STEP>(row + at[j], mask[j] & is_row);
#pragma unroll
                for (int column = 0; column < COLUMNS; ++column)
                    value[column] = widen(loaded[(column + SHIFT) / STEP].value[(column + SHIFT) % STEP]);
            },
            [&](int p, const float(&sum)[TQ][1]) {
                if (task.p0 + p >= p_end) return;
#pragma unroll
                for (int q = 0; q < TQ; q += STEP_OUT) {
                    if (q > 0 && task.q0 + q >= Q) continue;
                    float ended[STEP_OUT];
#pragma unroll
                    for (int e = 0; e < STEP_OUT; ++e) ended[e] = sum[q + e][0];
#if HAS_EPILOGUE
                    epilogue.apply(ended, filter, target + (out - rows_out) + p * Q + q);
#endif
                    Vector<STEP_OUT> result;
#pragma unroll
                    for (int e = 0; e < STEP_OUT; ++e) result.value[e] = narrow(ended[e]);
                    *(Vector<STEP_OUT>*)(out + p * Q + q) = result;
                }
            });
        index += blockDim.x;
        if (index < tasks) task = read_task(index, weight, first, K, strips, tiles_q, p_begin, strip_rows, by);
    }
    if constexpr (STAGED == 2) {
        __syncthreads();
        store_run(target, staged_out, skipped_out, stored);
    }
}
