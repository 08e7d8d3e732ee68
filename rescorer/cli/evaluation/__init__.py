"""Commands for people who measure: how good lists are, and which weights suit them.

Lists with references come in; tables, reports and weights come out.
"""
