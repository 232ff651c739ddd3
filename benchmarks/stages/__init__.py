"""Each kernel of a variant by itself, beside the tables of the seed papers that do the same on a V100."""
