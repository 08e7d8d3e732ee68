"""Run a recipe: from raw text to a verified bundle and a report of its figures."""
