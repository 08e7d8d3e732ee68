"""Reload models and kill workers under load, and check every answer against the library."""
