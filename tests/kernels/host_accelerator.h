// What instructions of Hopper do that no CPU has, for tests: after host_shim.h, called where host_accelerator.py found them.
//
// An address of shared memory is its distance from where dynamic shared memory begins. Whatever is asynchronous is done at once.

struct TensorMap;

namespace host {

static char* shared_bytes() { return (char*)DYNAMIC_SHARED; }

// Sixteen bytes of a swizzled address go where its bits 7 to 9, or 7 and 8, say.
static unsigned swizzled(unsigned address, unsigned row_bytes) {
    const unsigned mask = row_bytes == 128 ? 7 : row_bytes == 64 ? 3 : 0;
    return address ^ (address >> 7 & mask) << 4;
}
template <class Value>
static Value& at(unsigned address) {
    return *(Value*)(shared_bytes() + address);
}

// A barrier: arrivals of a phase, those to come, bytes to come, phases done.
struct Barrier {
    short arrivals, to_come;
    int bytes_and_phase;  // bytes * 2 + parity of the phase

    void settle() {
        if (to_come || bytes_and_phase >> 1) return;
        to_come = arrivals;
        bytes_and_phase ^= 1;
    }
};
static void mbarrier_init(unsigned place, int arrivals) { at<Barrier>(place) = {(short)arrivals, (short)arrivals, 0}; }
static void mbarrier_arrive(unsigned place) {
    Barrier& barrier = at<Barrier>(place);
    if (barrier.to_come <= 0) fail("too many arrive at a barrier");
    --barrier.to_come, barrier.settle();
}
static void mbarrier_arrive_expect_tx(unsigned place, int bytes) {
    at<Barrier>(place).bytes_and_phase += bytes * 2;
    mbarrier_arrive(place);
}
static void complete(unsigned place, int bytes) {
    at<Barrier>(place).bytes_and_phase -= bytes * 2;
    at<Barrier>(place).settle();
}
static void mbarrier_try_wait(unsigned& is_done, unsigned place, unsigned parity) {
    is_done = (at<Barrier>(place).bytes_and_phase & 1) != (int)parity;
    if (!is_done) yield();
}

// A map as HostDriver wrote it.
struct Map {
    uint64_t kind, address, sizes[4], strides[3], box[4];
    int32_t lower[2], upper[2];
    uint64_t row_bytes;
};
static const Map& map_of(const TensorMap* map) { return *(const Map*)map; }

static void put(unsigned to, unsigned place, unsigned row_bytes, uint16_t value) {
    at<uint16_t>(swizzled(to + place * 2, row_bytes)) = value;
}
static uint16_t element(const Map& map, const int64_t (&index)[4]) {
    int64_t bytes = index[0] * 2;
    for (int axis = 0; axis < 4; ++axis) {
        if (index[axis] < 0 || index[axis] >= (int64_t)map.sizes[axis]) return 0;
        if (axis) bytes += index[axis] * (int64_t)map.strides[axis - 1];
    }
    return *(const uint16_t*)(map.address + bytes);
}
static void load_box(unsigned to, const TensorMap* from, unsigned barrier, int first, int second, int third) {
    const Map& map = map_of(from);
    if (map.kind != 0) fail("a map of pixels is read in boxes");
    if (to % 1024 || first * 2 % 16) fail("a box is not aligned");
    const int begin[3] = {first, second, third};
    for (int axis = 0; axis < 3; ++axis)
        if (begin[axis] < 0 || begin[axis] >= (int64_t)map.sizes[axis]) fail("a box is wholly outside");
    unsigned place = 0;
    for (uint64_t outer = 0; outer < map.box[2]; ++outer)
        for (uint64_t row = 0; row < map.box[1]; ++row)
            for (uint64_t column = 0; column < map.box[0]; ++column)
                put(to, place++, map.row_bytes,
                    element(map, {first + (int64_t)column, second + (int64_t)row, third + (int64_t)outer, 0}));
    complete(barrier, place * 2);
}
static void cp_async_bulk_tensor_2d(unsigned to, const TensorMap* map, unsigned barrier, int first, int second) {
    load_box(to, map, barrier, first, second, 0);
}
static void cp_async_bulk_tensor_3d(unsigned to, const TensorMap* map, unsigned barrier, int first, int second, int third) {
    load_box(to, map, barrier, first, second, third);
}
static void cp_async_bulk_tensor_4d(unsigned to, const TensorMap* from, unsigned barrier, int c, int w, int h, int n,
                                    unsigned short right, unsigned short down) {
    const Map& map = map_of(from);
    if (map.kind != 1) fail("a map of boxes is read in pixels");
    if (to % 1024) fail("a box is not aligned");
    const int64_t begin[2] = {w, h}, sizes[2] = {(int64_t)map.sizes[1], (int64_t)map.sizes[2]};
    int64_t counts[2], at_first[2];
    for (int axis = 0; axis < 2; ++axis) {
        const int64_t step = map.box[2 + axis], span = sizes[axis] - 1 + map.upper[axis] - map.lower[axis];
        counts[axis] = span / step + 1;
        at_first[axis] = (begin[axis] - map.lower[axis]) / step;
    }
    unsigned place = 0;
    for (uint64_t pixel = 0; pixel < map.box[1]; ++pixel) {
        const int64_t column = at_first[0] + pixel, row = at_first[1] + column / counts[0];
        const int64_t at_w = map.lower[0] + column % counts[0] * (int64_t)map.box[2] + right;
        const int64_t at_h = map.lower[1] + row % counts[1] * (int64_t)map.box[3] + down;
        for (uint64_t channel = 0; channel < map.box[0]; ++channel)
            put(to, place++, map.row_bytes, element(map, {c + (int64_t)channel, at_w, at_h, n + row / counts[1]}));
    }
    complete(barrier, place * 2);
}

// An element of an operand of wgmma: of rows with gemm_k innermost, or of gemm_k's rows, each 64 elements by eight.
static float operand(unsigned long long descriptor, unsigned row, unsigned k, bool is_innermost) {
    const unsigned start = (descriptor & 0x3FFF) << 4, leading = (descriptor >> 16 & 0x3FFF) << 4,
                   stride = (descriptor >> 32 & 0x3FFF) << 4, row_bytes = descriptor >> 62 == 1 ? 128 : 64;
    if (descriptor >> 49 & 7) fail("a base offset");
    unsigned address;
    if (is_innermost) {
        if (row_bytes != 128) fail("only swizzled by 128 bytes");
        address = start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2;
    } else {
        address = start + row / 8 * stride + row % 8 * row_bytes + k * 2;
    }
    Storage value;
    memcpy(&value, shared_bytes() + swizzled(address, row_bytes), sizeof value);
    return widen(value);
}
template <int TILES>
static void multiply_add(float (&d)[TILES][4], unsigned long long a, unsigned long long b, bool is_added) {
#ifdef COLUMNS_ARE_INNERMOST
    const bool is_innermost = true;
#else
    const bool is_innermost = false;
#endif
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16 + lane / 4;
    float rows[2][16];
    for (int k = 0; k < 16; ++k) rows[0][k] = operand(a, first, k, false), rows[1][k] = operand(a, first + 8, k, false);
    for (int j = 0; j < TILES; ++j)
        for (int side = 0; side < 2; ++side) {
            float column[16];
            for (int k = 0; k < 16; ++k) column[k] = operand(b, j * 8 + lane % 4 * 2 + side, k, is_innermost);
            for (int half = 0; half < 2; ++half) {
                float sum = is_added ? d[j][half * 2 + side] : 0;
                for (int k = 0; k < 16; ++k) sum += rows[half][k] * column[k];
                d[j][half * 2 + side] = sum;
            }
        }
}

static unsigned addresses[1024];
static void stmatrix(unsigned address, unsigned first, unsigned second, unsigned third, unsigned fourth) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x - lane, values[] = {first, second, third, fourth};
    addresses[threadIdx.x] = address;
    yield();
    for (int matrix = 0; matrix < 4; ++matrix)
        at<unsigned>(addresses[warp + matrix * 8 + lane / 4] + lane % 4 * 4) = values[matrix];
    yield();
}
static void ldmatrix(unsigned& first, unsigned& second, unsigned& third, unsigned& fourth, unsigned address) {
    const unsigned lane = threadIdx.x % 32, warp = threadIdx.x - lane;
    unsigned* const values[] = {&first, &second, &third, &fourth};
    addresses[threadIdx.x] = address;
    yield();
    for (int matrix = 0; matrix < 4; ++matrix)
        *values[matrix] = at<unsigned>(addresses[warp + matrix * 8 + lane / 4] + lane % 4 * 4);
    yield();
}

static void elect_sync(unsigned& elected) { elected = threadIdx.x % 32 == 0; }
static void mov_u32(unsigned& to, unsigned from) { to = from; }
static void cp_async_cg(unsigned to, const void* from) {
    if (to % 16 || (uintptr_t)from % 16) fail("a copy is not aligned");
    memcpy(shared_bytes() + to, from, 16);
}
static void cp_async_ca(unsigned to, const void* from, int bytes) {
    if (to % bytes || (uintptr_t)from % bytes) fail("a copy is not aligned");
    memcpy(shared_bytes() + to, from, bytes);
}
static void st_shared_u32(unsigned to, unsigned value) { at<unsigned>(to) = value; }
static void ld_shared_u16(unsigned short& value, unsigned from) { value = at<unsigned short>(from); }
static void ld_shared_v2(unsigned& x, unsigned& y, unsigned from) { x = at<unsigned>(from), y = at<unsigned>(from + 4); }
static void ld_shared_v4(unsigned& x, unsigned& y, unsigned& z, unsigned& w, unsigned from) {
    ld_shared_v2(x, y, from), ld_shared_v2(z, w, from + 8);
}
template <class... Anything>
static void nothing(Anything&&...) {}

}  // namespace host
