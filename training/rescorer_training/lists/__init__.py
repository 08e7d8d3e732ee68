"""Make training lists for weights and rerankers where users have few real ones.

In come texts, and real lists to imitate or to keep apart; out come n-best lists with references: those of a
recogniser that hears synthetic speech, or those of a model of the recogniser's confusions.
"""
