"""Word classes and trees for factored output layers, and pretrained word vectors."""
