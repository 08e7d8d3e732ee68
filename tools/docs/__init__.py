"""Generate the reference pages of the documentation from the code: settings, commands and the protocol.

The sources are the settings class, the typer apps and the .proto files. The result is Markdown in
docs/reference, which is committed so that it can be read without building the site.
"""
