"""Locks, images, bill of materials and distributions: what a release is made from, run by ``make``."""
