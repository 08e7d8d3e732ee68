"""Render results as tables for the terminal.

The dataclasses of ``rescorer.evaluation`` come in; rich renderables go out.
"""
