"""Bound what each client may take: memory, streams, time, sizes of requests and answers, refusals per second.

Calls come in; they pass, wait, or are refused with an error that names the limit.
"""
