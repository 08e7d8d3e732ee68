"""Propose hypotheses that a list lacks: spans of its hypotheses, replaced by phrases that sound like them.

In come a list with phrases and a pronunciation dictionary; out comes the list with new hypotheses at its end,
each marked with the phrase, the span that it replaces and how far apart the two sound.
"""
