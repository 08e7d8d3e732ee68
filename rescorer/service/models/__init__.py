"""Bundles on disk and in service: discover, load, switch, drain and drop versions."""
