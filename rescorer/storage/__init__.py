"""Find and read objects of storage services by their URLs, such as ``s3://bucket/key``, through fsspec.

URLs come in; names, sizes and streams come out. Faults are errors of the operating system, with a reason in
one line: not found, access denied, no answer.
"""
