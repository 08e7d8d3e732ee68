"""Rescore in shards, and the commands ``rescorer shards …`` that look at them.

Options of ``rescorer rescore`` come in; a plan, runs of its shards and their states come out.
"""
