"""Read and check the files of models with neither torch nor KenLM, before anything is built from them.

Memory and time for a file follow from its size on disk: what its header declares is compared with that size.
"""
