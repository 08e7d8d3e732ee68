"""Train GloVe vectors (Pennington, Socher & Manning 2014) from co-occurrence cells.

Cells are shuffled once on disk, then trained on in blocks by AdaGrad, in one or several threads.
"""
