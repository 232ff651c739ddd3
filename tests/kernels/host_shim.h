// CUDA C++ on a CPU, for tests: blocks run one after the other, the threads of a block as fibres that change at barriers
// and where a warp exchanges values; every thread of a warp must come to each exchange.
//
// Put before a .cu; LAUNCHER(kernel) after it then exports launch_<kernel>, which takes what a CUDA launch takes. Dynamic
// shared memory is a global array, named by DYNAMIC_SHARED, and its declarations lose their __shared__. It starts as
// NaN and ends in a guard zone: a kernel that reads what it never staged, or writes beyond what was asked for, is found.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __constant__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() host::sync_block()
#define __syncwarp() host::yield()

struct Index3 {
    unsigned x = 0, y = 0, z = 0;
};
struct float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct int2 {
    int x, y;
};
struct uint2 {
    unsigned x, y;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
using std::max;
using std::min;
inline float __int_as_float(int bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
inline unsigned __umulhi(unsigned x, unsigned y) { return (uint64_t)x * y >> 32; }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    const uint64_t bytes = (uint64_t)high << 32 | low;
    unsigned chosen = 0;
    for (int i = 0; i < 4; ++i) chosen |= (unsigned)(bytes >> (selector >> 4 * i & 7) * 8 & 0xFF) << 8 * i;
    return chosen;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

struct __half {
    _Float16 value;
    operator float() const { return value; }
};
struct __half2 {
    __half x, y;
};
inline __half2 __float22half2_rn(float2 pair) { return {{(_Float16)pair.x}, {(_Float16)pair.y}}; }
inline float __half2float(__half value) { return value.value; }
inline __half __float2half_rn(float value) { return {(_Float16)value}; }
inline __half2 __floats2half2_rn(float x, float y) { return {{(_Float16)x}, {(_Float16)y}}; }
inline float2 __half22float2(__half2 pair) { return {pair.x, pair.y}; }

struct __nv_bfloat16 {
    uint16_t bits;
};
inline float __bfloat162float(__nv_bfloat16 value) {
    const uint32_t bits = (uint32_t)value.bits << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}
inline __nv_bfloat16 __float2bfloat16_rn(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (value != value) return {0x7FFF};
    return {(uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)};
}
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)}; }

static Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr int shared_floats = 228 * 1024 / 4, guard_floats = 1024, stack_bytes = 64 * 1024;
constexpr float guard = -12345.0f;

struct Fibre {
    ucontext_t context;
    Index3 thread;
    bool is_done = false;
    std::vector<char> stack = std::vector<char>(stack_bytes);
};

static ucontext_t scheduler;
static Fibre* running;
static void (*body)(void**);
static void** arguments;

static void fail(const char* reason) {
    fprintf(stderr, "%s\n", reason);
    abort();
}

static void yield() {
    if (!running) fail("only some threads of a block meet a barrier or exchange values");
    swapcontext(&running->context, &scheduler);
}

// Threads that wait at a barrier, and how often all of them have met at one.
static unsigned waiting, meetings;

static void sync_block() {
    const unsigned before = meetings;
    ++waiting;
    while (meetings == before) yield();
}

static unsigned exchanged[1024];

template <class Value, class Choose>
static Value exchange(Value value, Choose choose) {
    static_assert(sizeof value == sizeof *exchanged, "32 bits");
    const unsigned thread = threadIdx.y * blockDim.x + threadIdx.x;
    memcpy(exchanged + thread, &value, sizeof value);
    yield();
    const unsigned bits = choose(exchanged + thread / 32 * 32, thread % 32);
    yield();
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void enter() {
    body(arguments);
    running->is_done = true;
    yield();
}

static void start(Fibre& fibre) {
    fibre.is_done = false;
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.data();
    fibre.context.uc_stack.ss_size = stack_bytes;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, enter, 0);
}

static void resume(Fibre& fibre) {
    running = &fibre;
    threadIdx = fibre.thread;
    swapcontext(&scheduler, &fibre.context);
    running = nullptr;
}

// In each round every thread runs to its next barrier or exchange or its end. A barrier lets go once all threads wait.
// Where the first thread meets none, the others need no fibre.
static void run_block(std::vector<Fibre>& fibres) {
    waiting = 0;
    start(fibres[0]);
    resume(fibres[0]);
    if (fibres[0].is_done) {
        for (size_t index = 1; index < fibres.size(); ++index) {
            threadIdx = fibres[index].thread;
            body(arguments);
        }
        return;
    }
    for (size_t index = 1; index < fibres.size(); ++index) {
        start(fibres[index]);
        resume(fibres[index]);
    }
    const auto is_done = [](const Fibre& fibre) { return fibre.is_done; };
    for (size_t done = 0; done < fibres.size();) {
        done = std::count_if(fibres.begin(), fibres.end(), is_done);
        if (waiting > 0 && waiting + done == fibres.size()) {
            if (done > 0) fail("only some threads of a block meet a barrier");
            waiting = 0;
            ++meetings;
        }
        for (Fibre& fibre : fibres)
            if (!fibre.is_done) resume(fibre);
    }
}

template <class... Arguments>
struct Caller {
    template <void (*kernel)(Arguments...), size_t... index>
    static void call(void** values, std::index_sequence<index...>) {
        kernel(*static_cast<Arguments*>(values[index])...);
    }
    template <void (*kernel)(Arguments...)>
    static void unpack(void** values) {
        call<kernel>(values, std::index_sequence_for<Arguments...>());
    }
};
template <class... Arguments>
Caller<Arguments...> caller_of(void (*)(Arguments...));

}  // namespace host

template <class Value>
Value __ldg(const Value* place) {
    return *place;
}
template <class Value>
Value __shfl_sync(unsigned, Value value, int lane) {
    return host::exchange(value, [lane](const unsigned* warp, unsigned) { return warp[lane % 32]; });
}
template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int mask) {
    return host::exchange(value, [mask](const unsigned* warp, unsigned lane) { return warp[lane ^ mask]; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
    return host::exchange(value, [](const unsigned* warp, unsigned) { return *std::max_element(warp, warp + 32); });
}

#ifdef DYNAMIC_SHARED
alignas(16) float DYNAMIC_SHARED[host::shared_floats + host::guard_floats];
#endif

namespace host {

static void fill_shared(size_t bytes) {
#ifdef DYNAMIC_SHARED
    std::fill_n(DYNAMIC_SHARED, bytes / 4, std::numeric_limits<float>::quiet_NaN());
    std::fill_n(DYNAMIC_SHARED + bytes / 4, guard_floats, guard);
#endif
    (void)bytes;
}

static bool is_guard_intact(size_t bytes) {
#ifdef DYNAMIC_SHARED
    const float* const zone = DYNAMIC_SHARED + bytes / 4;
    return std::all_of(zone, zone + guard_floats, [](float value) { return value == guard; });
#endif
    (void)bytes;
    return true;
}

static int launch(void (*unpack)(void**), unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_y,
                  size_t shared_bytes, void** values) {
    body = unpack;
    arguments = values;
    gridDim = {grid_x, grid_y, 1};
    blockDim = {block_x, block_y, 1};
    std::vector<Fibre> fibres(block_x * block_y);
    for (unsigned index = 0; index < fibres.size(); ++index)
        fibres[index].thread = {index % block_x, index / block_x, 0};
    for (unsigned block = 0; block < grid_x * grid_y; ++block) {
        blockIdx = {block % grid_x, block / grid_x, 0};
        fill_shared(shared_bytes);
        run_block(fibres);
        if (!is_guard_intact(shared_bytes)) return 1;
    }
    return 0;
}

}  // namespace host

#define LAUNCHER(kernel)                                                                                         \
    extern "C" int launch_##kernel(unsigned grid_x, unsigned grid_y, unsigned block_x, unsigned block_y,         \
                                   size_t shared_bytes, void** values) {                                         \
        using Caller = decltype(host::caller_of(kernel));                                                        \
        return host::launch(Caller::unpack<kernel>, grid_x, grid_y, block_x, block_y, shared_bytes, values);     \
    }
