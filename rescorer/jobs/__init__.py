"""Rescore archives in shards, each committed exactly once, by any number of processes and machines.

A plan divides the input into shards. A process that runs a shard writes the output to a file with a new name,
and then creates the record of the shard, which names this file. A record can be created only once, and a file
that no record names is never read.
"""
