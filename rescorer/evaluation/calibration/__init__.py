"""Fit the maps that turn posteriors into confidences, and judge confidences.

Posteriors of best hypotheses or of their words come in, with whether each was right; a ``ConfidenceMap``
and its measures on lists that did not fit it come out. Applying a map is ``rescorer.decision.confidence``.
"""
