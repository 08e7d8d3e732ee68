"""Combine several recognisers and judge the combination against each of them.

Files of lists for the same utterances come in; utterances with one list per system, settings of the vote, and
errors on utterances that did not tune these settings come out.
"""
