"""Generate the reference pages of the documentation from the code: settings, commands and the protocol.

What comes in: the settings class, the typer apps and the .proto files. What goes out: Markdown in
docs/reference, which is committed, so that it can be read without building the site.
"""
