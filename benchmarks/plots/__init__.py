"""The figures and tables of docs/kernels.md and docs/guidelines.md: ``python -m benchmarks.plots``; needs no GPU.

Run it again after a sweep: it rewrites the parts of the pages between their marks. The figures are drawn where the site
is built (``make docs``).
"""
