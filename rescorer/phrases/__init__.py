"""Find the names and phrases of a conversation in hypotheses, and credit those that have them.

In come phrases with weights, and hypotheses in canonical words; out comes the credit of each hypothesis, and
the phrases that gave it.
"""
