"""cuConv: scalar products of filter rows along the depth, then the sum of their planes."""
