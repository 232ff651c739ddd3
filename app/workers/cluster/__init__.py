"""Work spread over machines: Dask places and carries it, a supervised child in each of its workers does it."""
