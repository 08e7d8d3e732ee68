"""``rescorer top``: read the metrics of a running server and show what happened between two readings."""
