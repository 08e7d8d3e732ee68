"""Make bundles from trained models: name and mix the models, copy them, measure and publish.

Takes folders of models and held-out text; leaves a verified bundle.
"""
