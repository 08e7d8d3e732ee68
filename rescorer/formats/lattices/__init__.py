"""Word lattices: read into n-best lists by exact search, written from lists as prefix trees."""
