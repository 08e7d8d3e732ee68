"""Read and write formats whose files are JSON documents: one module per format, and ``documents`` for all.

Files come in and lists go out, with an error in place of each list that cannot be read.
"""
