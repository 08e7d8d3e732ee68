"""Run recipes: from raw text to a verified bundle and a report of its perplexities.

Takes a TOML recipe and a folder of texts; leaves a folder with models, bundle and report.
"""
