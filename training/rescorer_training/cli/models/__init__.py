"""Commands that estimate language models, or change them: n-grams and networks.

Text or models come in; a model comes out.
"""
