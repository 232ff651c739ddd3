// Rows down trees: one row a thread, with the comparisons and the sums of scikit-learn, in its order.

struct Node {
    float threshold;
    int feature;  // negative: a leaf
    int left;     // of a leaf, the place of its value
    int right;
};

__device__ int place_of(const Node* __restrict__ nodes, int root, const float* __restrict__ row) {
    Node node = nodes[root];
    while (node.feature >= 0) node = nodes[row[node.feature] <= node.threshold ? node.left : node.right];
    return node.left;
}

// places[tree][i]: where row i ends in each tree. Grid: (rows / 256, trees).
extern "C" __global__ void places(const float* __restrict__ x, long long n_features, long long n,
                                  const Node* __restrict__ nodes, const int* __restrict__ roots,
                                  int* __restrict__ found) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) found[blockIdx.y * n + i] = place_of(nodes, roots[blockIdx.y], x + i * n_features);
}

// mean[i][target]: of the values at the places of row i. Grid: rows.
extern "C" __global__ void mean(const int* __restrict__ places, long long n, int n_trees,
                                const float* __restrict__ values, int n_targets, float* __restrict__ found) {
    const long long i = blockIdx.x;
    for (int target = threadIdx.x; target < n_targets; target += blockDim.x) {
        float sum = 0.0f;
        for (int tree = 0; tree < n_trees; ++tree)
            sum = __fadd_rn(sum, values[(long long)places[tree * n + i] * n_targets + target]);
        found[i * n_targets + target] = __fdiv_rn(sum, (float)n_trees);
    }
}

// sums[i]: start, and the value of each tree, of row rows[i]. Grid: n / 256.
extern "C" __global__ void boosted(const float* __restrict__ x, long long n_features,
                                   const long long* __restrict__ rows, long long n, const Node* __restrict__ nodes,
                                   const int* __restrict__ roots, int n_trees, const double* __restrict__ values,
                                   double start, double* __restrict__ sums) {
    const long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float* row = x + rows[i] * n_features;
    double sum = start;
    for (int tree = 0; tree < n_trees; ++tree) sum = __dadd_rn(sum, values[place_of(nodes, roots[tree], row)]);
    sums[i] = sum;
}
