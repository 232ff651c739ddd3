"""What a change of driver, library or kernels made slower or faster."""
