// From sums in registers to y, and the residual on its way there: part of implicit_gemm_tma.cu, after its macros.

// Boxes of BOX pixels and BOX_LINE_BYTES of filters on their way to y, in BOXES buffers of who fills them together, by turns.
// Where there is a residual its box comes into a buffer first, and what is stored takes its place there: the first BOXES of a
// tile while it is multiplied, each other one as soon as the buffer's box before has been read. Of a tile that blocks share
// only a block's own boxes count.
class Boxes {
   public:
    // `loaded` has a barrier for every buffer, which counts the residual's bytes.
    __device__ __forceinline__ Boxes(unsigned bytes, unsigned loaded, int filler, const SharedSums& shared)
        : bytes_(bytes), loaded_(loaded), barrier_(1 + filler), turn_(0), shared_(shared) {}

    // Before a tile is multiplied; all boxes of the tile before have been read.
    __device__ __forceinline__ void load_first(const TensorMap& residual, const Part& part, const Sizes& sizes) const {
        if (!leads()) return;
        for (unsigned box = 0; box < BOXES; ++box) load(residual, part, box, turn_ + box, sizes);
    }
    __device__ __forceinline__ void store(const TensorMap& y, const TensorMap& residual, const Epilogue& epilogue,
                                          const Bias& bias, float (&sum)[SUMS], const Part& part, const Sizes& sizes) {
        unsigned box = 0, own = 0;
#pragma unroll
        for (int i = 0; i < TILES_M; ++i) {
#pragma unroll
            for (int j = 0; j < BF / BOX_FILTERS; ++j) {
                const Part at = box_of(part, i, j);
                if (!is_in_y(at, sizes) || !shared_.is_own(box++)) continue;
                shared_.add_others(sum[i], j * (BOX_FILTERS / 8), box - 1);
                const unsigned buffer = bytes_ + turn_ % BOXES * BOX_BYTES;
#if RESIDUAL
                wait_for(loaded_ + turn_ % BOXES * 8, turn_ / BOXES & 1);
#else
                if (leads()) wait_for_all_boxes_but<BOXES - 1>();
                wait();
#endif
                fill(buffer, epilogue, bias, sum[i], j * (BOX_FILTERS / 8), at.filter, sizes);
                publish_to_accelerator();
                wait();
                if (leads()) {
                    store_box(y, buffer, at.filter, at.pixel);
#if RESIDUAL
                    wait_for_all_boxes_but<0>();
                    load(residual, part, own + BOXES, turn_ + BOXES, sizes);
#endif
                }
                ++own, ++turn_;
            }
        }
        (void)residual, (void)own;
    }
    // Shared memory has to last until it has been read.
    __device__ __forceinline__ void finish() const {
        if (leads()) wait_for_all_boxes_but<0>();
    }

   private:
    __device__ __forceinline__ bool leads() const { return threadIdx.x % BOX_THREADS == 0; }
    __device__ __forceinline__ void wait() const {
        if (BOX_THREADS == 32)
            __syncwarp();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(barrier_), "n"(BOX_THREADS) : "memory");
    }
    // The first of a warp's pixels in its box.
    __device__ __forceinline__ static int first_line() { return threadIdx.x % BOX_THREADS / 32 * 16; }

    // Of the own boxes of a part that lie in y, filters first, the one of this number, if there is one.
    __device__ __forceinline__ void load(const TensorMap& residual, const Part& part, unsigned own, unsigned turn,
                                         const Sizes& sizes) const {
        const unsigned box = shared_.first() + own * shared_.step();
        const unsigned across = (min((unsigned)BF, sizes.K - part.filter) + BOX_FILTERS - 1) / BOX_FILTERS, down = box / across;
        const Part at = box_of(part, down, box - down * across);
        if (down >= TILES_M || !is_in_y(at, sizes)) return;
        const unsigned buffer = turn % BOXES, arrived = loaded_ + buffer * 8;
        expect_bytes(arrived, BOX_BYTES);
        load_box(bytes_ + buffer * BOX_BYTES, residual, arrived, at.filter, at.pixel);
    }

    // A thread's sums of 8 columns: rows lane / 4 and 8 more, columns lane % 4 * 2 and the next. A box has a pixel a line,
    // whose 16 bytes c lie at c ^ line % 8, of 64 bytes at c ^ line % 8 / 2. What a warp reads of the residual it overwrites itself.
#ifdef STORAGE_FLOAT32
    // Threads of odd pixels take the columns in another order than those of even ones: then sixteen of them meet all banks.
    // Those sixteen have pixels 0 to 3, or where it IS_OF_HALVES 0, 4, 1 and 5.
    __device__ __forceinline__ void fill(unsigned to, const Epilogue& epilogue, const Bias& bias, float (&sum)[TILES_N][4],
                                         int first, unsigned first_filter, const Sizes& sizes) const {
        const int lane = threadIdx.x % 32, row = pixel_of_row(lane / 4), swapped = row % 2 * (2 - IS_OF_HALVES);
        to += (first_line() + row) * BOX_LINE_BYTES + lane % 2 * 8;
#pragma unroll
        for (int j = 0; j < BOX_FILTERS / 8; ++j) {
            const unsigned place = to + (((j ^ swapped) * 2 + lane % 4 / 2) ^ row) * 16;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const unsigned at = place + half * 8 * BOX_LINE_BYTES;
                const float(&even)[4] = sum[first + j], (&odd)[4] = sum[first + (j ^ (2 - IS_OF_HALVES))];
                float two[] = {swapped ? odd[half * 2] : even[half * 2], swapped ? odd[half * 2 + 1] : even[half * 2 + 1]};
                [[maybe_unused]] float residual[2] = {};
#if RESIDUAL
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(residual[0]), "=f"(residual[1]) : "r"(at) : "memory");
#endif
#if HAS_EPILOGUE
                const unsigned filter = first_filter + (j ^ swapped) * 8 + lane % 4 * 2;
                if (filter < (unsigned)sizes.K) epilogue.apply_with<true>(two, filter, residual);
#endif
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(two[0]), "f"(two[1]) : "memory");
            }
        }
        (void)epilogue, (void)bias, (void)first_filter, (void)sizes;
    }
#else
    __device__ __forceinline__ void fill(unsigned to, const Epilogue& epilogue, const Bias& bias, float (&sum)[TILES_N][4],
                                         int first, unsigned first_filter, const Sizes& sizes) const {
        const int lane = threadIdx.x % 32, line = first_line() + lane % 16;
#pragma unroll
        for (int j = 0; j < BOX_FILTERS / 8; j += 2) {
            const unsigned place = to + line * BOX_LINE_BYTES + ((j + lane / 16) ^ lane % 8 / (BOX_ROW_BYTES / BOX_LINE_BYTES)) * 16;
            end_columns(place, epilogue, sum + first + j, bias.pairs + first + j);
        }
        (void)epilogue, (void)bias, (void)first_filter, (void)sizes;
    }
#endif

    unsigned bytes_, loaded_;
    int barrier_;
    unsigned turn_;  // boxes so far
    const SharedSums& shared_;
};
