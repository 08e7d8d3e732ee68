"""Options of ``rescorer rescore``: the decision rule, conversations, plans, shards and engines.

Text from the command line comes in; rules, rescorers of conversations, and runs of shards come out.
"""
