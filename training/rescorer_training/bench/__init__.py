"""Measure training speed against the hardware's floor and a plain PyTorch loop."""
