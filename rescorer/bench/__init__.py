"""Benchmark of scoring: time per phase, compared with matrix products, a plain PyTorch scorer and KenLM.

Takes n-best lists and a ``Rescorer``, and returns a ``BenchReport``.
"""
