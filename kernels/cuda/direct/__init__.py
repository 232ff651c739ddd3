"""The direct kernels of the post: naive, filters in constant memory, and tiles in shared memory."""
