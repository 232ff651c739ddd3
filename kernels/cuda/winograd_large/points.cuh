// The transforms of Winograd's 6x6 and 8x8 tiles, by Cook and Toom from the points 0, +-point(i) and infinity.
//
//   B^T          rows 0 and last: the product of (z - square) over all pairs, z = x^2, its coefficients on even or odd
//                columns; rows of a pair: x (x +- point) times the product over the other pairs, so both are sum and
//                difference of an even and an odd part
//   G            row of a point: its powers over f, the product of its distances to the other points; last: the last tap
//   A^T          column of a point: its powers; the last column ends in 1
//   defines      TILE: rows and columns of an input tile, 6 or 8
#define OUT 4
#define TAPS (TILE - OUT + 1)
#define POSITIONS (TILE * TILE)

// The pairs of points +-point(i), and their squares.
#define PAIRS (TILE / 2 - 1)
__device__ constexpr float point(int i) {
    return PAIRS == 2 ? (i == 0 ? 0.6875f : 1.375f) : (i == 0 ? 0.5f : i == 1 ? 1.0f : 2.0f);
}
__device__ constexpr float square(int i) { return point(i) * point(i); }
// The product over the other pairs j of (z - square(j)), at z = square(i); twice square(i) times that is f of the pair.
__device__ constexpr float distance(int i) {
    float product = 1;
    for (int j = 0; j < PAIRS; ++j) product *= j == i ? 1 : square(i) - square(j);
    return product;
}
__device__ constexpr float product_of_squares() {
    float product = 1;
    for (int j = 0; j < PAIRS; ++j) product *= -square(j);
    return product;
}
__device__ constexpr float sum_of_squares(int skipped) {
    float sum = 0;
    for (int j = 0; j < PAIRS; ++j) sum += j == skipped ? 0 : square(j);
    return sum;
}
// The product over all pairs of (z - square(j)) or over those but one, its coefficients multiplied by d[0], d[2], ...
__device__ __forceinline__ float combine_all(const float* d) {
    if constexpr (PAIRS == 2) return product_of_squares() * d[0] - sum_of_squares(-1) * d[2] + d[4];
    constexpr float middle = square(0) * square(1) + (square(0) + square(1)) * square(2);
    return product_of_squares() * d[0] + middle * d[2] - sum_of_squares(-1) * d[4] + d[6];
}
template <int SKIPPED>
__device__ __forceinline__ float combine_others(const float* d) {
    constexpr float sum = sum_of_squares(SKIPPED);
    if constexpr (PAIRS == 2) return d[2] - sum * d[0];
    constexpr float product = -product_of_squares() / square(SKIPPED);
    return d[4] - sum * d[2] + product * d[0];
}

// line = B^T line.
__device__ __forceinline__ void transform_line(float (&line)[TILE]) {
    float to[TILE];
    to[0] = combine_all(line);
    to[TILE - 1] = combine_all(line + 1);
    const float even[3] = {combine_others<0>(line + 2), combine_others<1>(line + 2), combine_others<PAIRS - 1>(line + 2)};
    const float odd[3] = {combine_others<0>(line + 1), combine_others<1>(line + 1), combine_others<PAIRS - 1>(line + 1)};
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        to[2 * i + 1] = even[i] + point(i) * odd[i];
        to[2 * i + 2] = even[i] - point(i) * odd[i];
    }
#pragma unroll
    for (int i = 0; i < TILE; ++i) line[i] = to[i];
}

__device__ __forceinline__ void transform_tile(float (&d)[POSITIONS]) {
#pragma unroll
    for (int pass = 0; pass < 2; ++pass) {
        const int across = pass == 0 ? 1 : TILE, along = pass == 0 ? TILE : 1;
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            float line[TILE];
#pragma unroll
            for (int i = 0; i < TILE; ++i) line[i] = d[j * across + i * along];
            transform_line(line);
#pragma unroll
            for (int i = 0; i < TILE; ++i) d[j * across + i * along] = line[i];
        }
    }
}

// to[i * to_step] = (G g)_i, g[j] at from[j * from_step].
__device__ __forceinline__ void transform_taps(float* to, int to_step, const float* from, int from_step) {
    to[0] = from[0] * (1 / product_of_squares());
    to[(TILE - 1) * to_step] = from[(TAPS - 1) * from_step];
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        float even = from[(TAPS - 1) * from_step], odd = from[(TAPS - 2) * from_step];
#pragma unroll
        for (int j = TAPS - 3; j >= 0; j -= 2) even = from[j * from_step] + square(i) * even;
#pragma unroll
        for (int j = TAPS - 4; j >= 0; j -= 2) odd = from[j * from_step] + square(i) * odd;
        const float scale = 1 / (2 * square(i) * distance(i));
        to[(2 * i + 1) * to_step] = scale * (even + point(i) * odd);
        to[(2 * i + 2) * to_step] = scale * (even - point(i) * odd);
    }
}

__device__ __forceinline__ void transform_filter(float (&u)[POSITIONS], const float (&g)[TAPS * TAPS]) {
    float rows[TILE * TAPS];
#pragma unroll
    for (int j = 0; j < TAPS; ++j) transform_taps(rows + j, TAPS, g + j, TAPS);
#pragma unroll
    for (int i = 0; i < TILE; ++i) transform_taps(u + TILE * i, 1, rows + TAPS * i, 1);
}

// y = A^T m of one line, m[i] at m[i * step].
__device__ __forceinline__ void transform_back(float (&y)[OUT], const float* m, int step) {
#pragma unroll
    for (int i = 0; i < OUT; ++i) y[i] = i == 0 ? m[0] : i == OUT - 1 ? m[(TILE - 1) * step] : 0.0f;
#pragma unroll
    for (int pair = 0; pair < PAIRS; ++pair) {
        const float plus = m[(2 * pair + 1) * step], minus = m[(2 * pair + 2) * step];
        float power = 1;
#pragma unroll
        for (int i = 0; i < OUT; ++i) {
            y[i] += power * (i % 2 == 0 ? plus + minus : plus - minus);
            power *= point(pair);
        }
    }
}

// A^T m A.
__device__ __forceinline__ void transform_product(float (&outputs)[OUT][OUT], const float (&m)[POSITIONS]) {
    float lines[OUT * TILE];
#pragma unroll
    for (int j = 0; j < TILE; ++j) {
        float line[OUT];
        transform_back(line, m + j, TILE);
#pragma unroll
        for (int i = 0; i < OUT; ++i) lines[TILE * i + j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < OUT; ++i) transform_back(outputs[i], lines + TILE * i, 1);
}
