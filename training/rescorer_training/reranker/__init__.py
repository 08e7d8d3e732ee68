"""Train rerankers: models that score the hypotheses of a list by features of the whole list.

Lists with references and a bundle come in; a reranker, judged on lists that did not train it, goes out.
"""
