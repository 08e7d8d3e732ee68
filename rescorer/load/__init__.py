"""Measure a server under open-loop load from client processes.

Takes a bundle, n-best lists and a plan; yields the measurements of each stage.
"""
