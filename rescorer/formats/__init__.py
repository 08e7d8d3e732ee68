"""Read and write n-best lists in the file formats of speech recognisers and scoring tools.

Readers yield ``NBestList`` objects with scores in nats, and an error in place of each invalid list. They
raise FormatError if the source cannot be opened. ``registry`` describes, selects and detects formats.
"""
