"""How much faster a sweep is on 2 and 4 devices of one host than on one, through a Dask cluster and without."""
