"""Report what n-best lists contain, and what looks wrong with them, before they are scored.

Lists come in one by one; an ``Inspection`` comes out, with statistics and findings. ``streams``, ``words``,
``models`` and ``tally`` gather statistics, ``stream_findings`` and ``findings`` judge them.
"""
