// im2col: the windows of x as the columns (nchw) or rows (nhwc) of a matrix, for a GEMM by cuBLAS.
//
//   tensors      x of the N images of one chunk; columns in storage type
//   GEMM         nchw: columns (N, C*R*S, P*Q); y[n] (K, P*Q) = weight (K, C*R*S) . columns[n], by group
//                nhwc: columns (N*P*Q, groups, R*S*C/groups); y (N*P*Q, K) = columns . weight^T, by group
//   versions     im2col_nchw | im2col_nhwc
//   grid, block  nchw: blocks of 64 to 256 pixels of one plane (n,c), each thread writing the R*S taps of its pixel
//                nhwc: 256 elements a block, one a thread
//   limits       columns of one chunk has at most 2^31 - 1 elements
//   source       Chellapilla, Puri, Simard: High Performance Convolutional Neural Networks, 2006

extern "C" __global__ void __launch_bounds__(256)
    im2col_nchw(const Storage* __restrict__ x, Storage* __restrict__ columns, SHAPE) {
    const int pixels = P * Q;
    const unsigned pixel_blocks = (pixels + blockDim.x - 1) / blockDim.x;
    const unsigned plane = blockIdx.x / pixel_blocks;
    const unsigned pixel = blockIdx.x % pixel_blocks * blockDim.x + threadIdx.x;
    if (pixel >= (unsigned)pixels) return;
    const int h0 = (int)(pixel / Q) * stride_h - pad_h;
    const int w0 = (int)(pixel % Q) * stride_w - pad_w;
    const Storage* const source = x + (size_t)plane * H * W;
    Storage* target = columns + (size_t)plane * R * S * pixels + pixel;
    for (int r = 0; r < R; ++r) {
        const int h = h0 + r * dilation_h;
        for (int s = 0; s < S; ++s, target += pixels) {
            const int w = w0 + s * dilation_w;
            *target = is_inside(h, H) && is_inside(w, W) ? source[h * W + w] : narrow(0.0f);
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    im2col_nhwc(const Storage* __restrict__ x, Storage* __restrict__ columns, SHAPE) {
    const unsigned channels = C / groups;
    unsigned rest = blockIdx.x * blockDim.x + threadIdx.x;
    Storage* const target = columns + rest;
    const int c = rest % channels;
    rest /= channels;
    const int s = rest % S;
    rest /= S;
    const int r = rest % R;
    rest /= R;
    const int group = rest % groups;
    rest /= groups;
    const int q = rest % Q;
    rest /= Q;
    const int p = rest % P;
    const unsigned n = rest / P;
    if (n >= (unsigned)N) return;
    const int h = p * stride_h - pad_h + r * dilation_h;
    const int w = q * stride_w - pad_w + s * dilation_w;
    *target = is_inside(h, H) && is_inside(w, W) ? x[(((size_t)n * H + h) * W + w) * C + group * channels + c]
                                                 : narrow(0.0f);
}
