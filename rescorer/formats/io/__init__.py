"""Read and write text, JSON and folders of files, without knowing what any list format means.

Sources are paths, pipes and binary streams; results are lines, JSON values and file names. Errors name the
file and, where possible, the line.
"""
