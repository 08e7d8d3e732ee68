"""Commands that train rerankers, and that make the lists to train them on.

Lists, speech or text come in; a bundle with a reranker, or lists, come out.
"""
