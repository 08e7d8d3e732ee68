"""Read and write n-best lists in the file formats of speech recognisers and scoring tools.

Readers yield ``NBestList`` objects with scores in nats, and an error in place of each invalid list.
``registry`` selects or detects a format; ``catalogue`` describes all formats.
"""
