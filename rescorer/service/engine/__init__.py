"""Admission, queue and batches: what runs when, and for whom."""
