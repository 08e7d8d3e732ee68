"""Judgement of pairs of systems: intervals, gains over each other, verdicts and paired tests.

The rows of a comparison, or recognised texts of several systems, come in; differences beyond chance come out.
"""
