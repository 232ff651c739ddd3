// CUDA C++ on a CPU, for tests: blocks run one after the other, the threads of a block as fibres that change at barriers.
//
// Put before a .cu; LAUNCHER(kernel) after it then exports launch_<kernel>, which takes what a CUDA launch takes. Dynamic
// shared memory is a global array, named by DYNAMIC_SHARED, and its declarations lose their __shared__. It starts as
// NaN and ends in a guard zone: a kernel that reads what it never staged, or writes beyond what was asked for, is found.

#include <ucontext.h>

#include <algorithm>
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
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __syncthreads() host::yield()

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
using std::min;

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

static Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace host {

constexpr int shared_floats = 96 * 1024 / 4, guard_floats = 1024, stack_bytes = 64 * 1024;
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
    if (!running) fail("only some threads of a block meet a barrier");
    swapcontext(&running->context, &scheduler);
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

// Every thread runs to its next barrier or its end before any runs on: that is what a barrier means. All must meet it.
// Where the first thread meets none, the others need no fibre.
static void run_block(std::vector<Fibre>& fibres) {
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
    while (!fibres[0].is_done) {
        for (Fibre& fibre : fibres) {
            if (fibre.is_done) fail("only some threads of a block meet a barrier");
            resume(fibre);
        }
    }
    for (const Fibre& fibre : fibres)
        if (!fibre.is_done) fail("only some threads of a block meet a barrier");
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

static int launch(void (*unpack)(void**), unsigned grid, unsigned block_x, unsigned block_y, size_t shared_bytes,
                  void** values) {
    body = unpack;
    arguments = values;
    gridDim = {grid, 1, 1};
    blockDim = {block_x, block_y, 1};
    std::vector<Fibre> fibres(block_x * block_y);
    for (unsigned index = 0; index < fibres.size(); ++index)
        fibres[index].thread = {index % block_x, index / block_x, 0};
    for (unsigned block = 0; block < grid; ++block) {
        blockIdx = {block, 0, 0};
        fill_shared(shared_bytes);
        run_block(fibres);
        if (!is_guard_intact(shared_bytes)) return 1;
    }
    return 0;
}

}  // namespace host

#define LAUNCHER(kernel)                                                                                         \
    extern "C" int launch_##kernel(unsigned grid, unsigned block_x, unsigned block_y, size_t shared_bytes,       \
                                   void** values) {                                                              \
        using Caller = decltype(host::caller_of(kernel));                                                        \
        return host::launch(Caller::unpack<kernel>, grid, block_x, block_y, shared_bytes, values);               \
    }
