"""Evaluate language models on text.

Takes trained models and text; returns perplexities, interpolation weights and sampled sentences.
"""
