// Division by numbers known before the launch, of values below 2^31; magic and shift are made by division.py.
// Source: Granlund, Montgomery: Division by Invariant Integers using Multiplication, 1994.

__device__ __forceinline__ unsigned divide(unsigned value, unsigned magic, unsigned shift) {
    return magic ? (unsigned)(((unsigned long long)value * magic) >> 32) >> shift : value >> shift;
}

// value becomes the remainder.
__device__ __forceinline__ unsigned take_quotient(unsigned& value, unsigned divisor, unsigned magic, unsigned shift) {
    const unsigned quotient = divide(value, magic, shift);
    value -= quotient * divisor;
    return quotient;
}

// What is divided by, where it comes to the kernel in a structure.
struct Divisor {
    unsigned value, magic, shift;

    // dividend becomes the remainder.
    __device__ __forceinline__ unsigned take_quotient(unsigned& dividend) const {
        return ::take_quotient(dividend, value, magic, shift);
    }
};
