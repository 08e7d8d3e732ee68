"""Simulations in which the truth is known: do intervals and tests keep what they promise?

Numbers of lists, speakers and errors come in; shares of the simulated sets in which an interval contained the
truth go out, for the documentation.
"""
