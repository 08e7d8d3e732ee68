"""Learn when generated hypotheses may win, from lists with references.

In come lists with phrases; out come the two weights of generated hypotheses, and what they are worth on lists
that did not choose them: errors on the lists themselves, and false alarms on lists without the phrases.
"""
