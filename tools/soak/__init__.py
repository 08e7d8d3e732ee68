"""Load a server for hours and measure the growth of its memory, file descriptors and threads."""
