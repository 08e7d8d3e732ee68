"""Read and write text, JSON and folders of files, without knowing what any list format means.

In come paths, pipes and binary streams; out go lines, JSON values and file names, each error with its place.
"""
