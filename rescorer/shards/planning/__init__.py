"""Plan the shards of an archive: which parts of which input files each one reads, and how to read them.

In come files, folders and objects; out goes a plan with the hash of every part. Parts drawn at random serve a
forecast.
"""
