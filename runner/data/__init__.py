"""Small real data sets: what there is, how it is made, where it lies."""
