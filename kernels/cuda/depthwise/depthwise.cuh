// What the depthwise kernels share: the window of a tile, and vectors of elements.

#define FILTER (FILTER_R * FILTER_S)
#define ROWS ((TP - 1) * STRIDE + (FILTER_R - 1) * DILATION + 1)
#define OVERLAP (ROWS > TP * STRIDE ? ROWS - TP * STRIDE : 0)
#define COLUMNS ((TQ - 1) * STRIDE + (FILTER_S - 1) * DILATION + 1)

template <int COUNT>
struct alignas(COUNT * sizeof(Storage)) Vector {
    Storage value[COUNT];
};

// What words a vector is loaded as: a choice between it and zeros is then made by words, not by elements.
template <int BYTES>
struct WordsOf;
template <>
struct WordsOf<2> {
    typedef unsigned short Type;
};
template <>
struct WordsOf<4> {
    typedef unsigned Type;
};
template <>
struct WordsOf<8> {
    typedef uint2 Type;
};
template <>
struct WordsOf<16> {
    typedef uint4 Type;
};

template <int COUNT>
__device__ __forceinline__ Vector<COUNT> load_or_zeros(const Storage* source, bool is_here) {
    typedef typename WordsOf<COUNT * sizeof(Storage)>::Type Words;
    Words words = {};
    if (is_here) words = *(const Words*)source;
    Vector<COUNT> vector;
    memcpy(&vector, &words, sizeof vector);
    return vector;
}

// A mask of which the compiler does not know that a comparison made it: it would compare again for each use.
__device__ __forceinline__ unsigned mask_where(bool is_true) {
    unsigned mask = is_true ? ~0u : 0u;
#ifdef __CUDA_ARCH__
    asm("" : "+r"(mask));
#endif
    return mask;
}

// Zero where mask is.
template <int COUNT>
__device__ __forceinline__ Vector<COUNT> masked(const Storage* source, unsigned mask) {
    typename WordsOf<COUNT * sizeof(Storage)>::Type words = *(const decltype(words)*)source;
    Vector<COUNT> vector;
    if constexpr (sizeof words == 8) {
        words.x &= mask;
        words.y &= mask;
    } else {
        words &= mask;
    }
    memcpy(&vector, &words, sizeof vector);
    return vector;
}
