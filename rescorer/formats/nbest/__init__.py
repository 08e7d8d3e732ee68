"""N-best list formats, one module each, in both directions."""
