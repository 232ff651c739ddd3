"""Which variant runs each convolution, in which layout, and what is kept of that for the next process."""
