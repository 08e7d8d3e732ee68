"""Turn text corpora into training batches.

Text files and a normaliser go in; word counts, word ids on disk and padded batches of them come out.
"""
