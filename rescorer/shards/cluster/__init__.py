"""Run shards on a Ray cluster: actors on its nodes load the models once, and run one shard after another.

Shards that are due and the resources of each worker come in; committed and failed shards come out.
"""
