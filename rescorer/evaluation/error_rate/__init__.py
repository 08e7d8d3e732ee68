"""Count word and character errors of hypotheses against reference transcripts.

References and hypotheses come in as text; ``WordErrors`` counts come out, which add up to the totals of a
report.
"""
