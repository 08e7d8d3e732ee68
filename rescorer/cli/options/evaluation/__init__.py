"""Options of the commands that evaluate lists: inputs, references, counting, analyses and the score cache.

Text from the command line comes in; readers of lists with references, bounds and loaded models come out.
"""
