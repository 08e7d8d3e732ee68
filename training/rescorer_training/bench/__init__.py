"""Measure training speed against a plain PyTorch loop and the hardware's floor.

Takes options and a text, real or random; returns words per second of each model and of the baseline.
"""
