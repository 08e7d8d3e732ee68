"""What networks read beside words: topics of the text before, and parts of speech of the words so far.

Contexts and prefixes of words come in; one vector of features for each goes out, which networks read.
"""
