"""Measure errors, inspect lists and tune weights, on n-best lists with reference transcripts.

``error_rate`` counts errors, ``statistics`` tells differences from chance, ``inspection`` reports what lists
contain and what looks wrong, ``tuning`` searches for weights, ``systems`` and ``combination`` judge systems.
Results are plain dataclasses, which ``rescorer.terminal.tables`` prints and ``report`` makes into a page.
"""
