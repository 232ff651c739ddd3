"""Work on several machines: Dask places it, and a supervised child process in each Dask worker does it."""
