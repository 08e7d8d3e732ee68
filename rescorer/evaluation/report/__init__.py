"""Report what rescoring did to a set of lists as HTML, Markdown or JSON.

Scored lists with references come in; ``data`` describes everything that a report shows, and each output
format is a function of that description.
"""
