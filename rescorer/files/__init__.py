"""Rescore files: read, cut into batches, rescore in this process or in several, and write in order."""
