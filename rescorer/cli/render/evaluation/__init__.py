"""Render the results of ``rescorer evaluate`` and the commands around it.

Results come in; tables, sentences and pictures come out.
"""
