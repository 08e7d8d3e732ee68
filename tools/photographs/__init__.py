"""Photograph HTML reports in headless Chromium (Debian's package ``chromium``), to look at them.

A page comes in; pictures for a large screen, light and dark, for a phone and on paper come out.
"""
