"""Optimise a network: losses, penalties, learning rates, averages of the weights and signs of divergence.

Takes the outputs and weights of a network; leaves what the trainer minimises, and how it does so.
"""
