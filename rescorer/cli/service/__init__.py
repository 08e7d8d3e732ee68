"""Commands for people who run a server: start it, check it, watch it, size it.

Settings and addresses come in; a running server, or what it says about itself, comes out.
"""
