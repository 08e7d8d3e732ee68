"""Run a transformer over the prefixes of a batch, each computed once.

Takes a trie with its contexts as word ids and a ``TransformerNetwork``; returns the context vector of each
node.
"""

from rescorer.lm.tree_attention.prefix_tree import build_prefix_tree
from rescorer.lm.tree_attention.scoring import tree_vectors

__all__ = ["build_prefix_tree", "tree_vectors"]
