"""Commands that measure language models: perplexity, sentence completion, sampled text.

Models and text come in; tables or JSON come out.
"""
