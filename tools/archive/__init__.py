"""Rescore a made archive in every way, with kills and a full disk, and show that each list comes out once.

Real lists come in, and files of many copies with perturbed words go out (``make``); or such files come in,
and throughput, memory and faults of each scenario go out (``run``), or the price of sharding (``overhead``).
"""
