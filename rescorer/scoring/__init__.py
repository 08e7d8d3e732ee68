"""Prepare lists, score them in batches, and rank them; the language models run elsewhere.

Lists and options come in; prepared lists, batches that request scores, columns of numbers, and rankings go
out. ``batch`` forms batches and sums scores, ``components`` defines the numbers of a hypothesis, ``ranker``
prepares and ranks lists. ``rescorer.pipeline`` runs them in one process, ``rescorer.service`` with workers.
"""
