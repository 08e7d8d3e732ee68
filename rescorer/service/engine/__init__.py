"""Admit requests, queue their lists fairly and score them in batches.

Prepared lists with a deadline come in; their scores, or the errors that prevented scoring, go out.
"""
