"""Train networks: prepare text, build the network, optimise it, validate it and write checkpoints.

Takes text files and options; leaves a folder with the best model, the training state and a log.
"""
