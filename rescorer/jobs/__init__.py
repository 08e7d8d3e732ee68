"""Rescore archives in shards, each committed exactly once, by any number of processes and machines.

A plan divides the input into shards. A process runs a shard by writing its output under a name of this
attempt and then creating the shard's record, which succeeds only once. Only files that records name are read.
"""
