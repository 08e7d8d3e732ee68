"""Measure errors, inspect lists and tune weights, on n-best lists with reference transcripts.

``error_rate`` counts errors, ``statistics`` tells them from chance, ``inspection`` reports what lists contain
and what looks wrong, ``tuning`` searches for weights, ``systems`` and ``combination`` judge systems. They
return plain dataclasses, which ``rescorer.terminal.tables`` prints and ``report`` makes into a page.
"""
