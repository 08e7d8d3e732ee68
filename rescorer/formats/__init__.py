"""Read and write n-best lists in the file formats of speech recognisers and scoring tools.

Files come in; ``NBestList`` objects in natural-log scores go out, or the error of each list that is invalid.
``registry`` detects and opens a format, ``catalogue`` describes all of them.
"""
