"""Load a server for hours and watch its memory, descriptors and threads."""
