"""Measure errors, inspect lists and tune weights, on n-best lists with reference transcripts.

``error_rate`` counts errors, ``inspection`` reports what lists contain and what looks wrong, ``tuning``
searches for weights; all take ``NBestList`` objects and return plain dataclasses, which
``rescorer.cli.render`` prints.
"""
