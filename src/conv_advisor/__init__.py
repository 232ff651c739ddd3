"""conv-advisor: which convolution algorithm is fastest for a layer on a GPU, how fast, and how sure.

The four rooms lie at the top of the repository and are reached through this package, so that an installation has one
name in site-packages: ``data`` the facts, ``kernels`` what runs or times a convolution, ``models`` from measurements to
advice, ``app`` how people reach it.
"""
