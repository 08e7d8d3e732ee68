"""Tuning of weights by their errors on lists with references: folds, cross-validation, judgement.

Components and errors per list come in; weights and cross-validated errors come out.
"""
