"""Fast matrix products: the best kernel of this machine, int8 and bfloat16, and quantised weights."""
