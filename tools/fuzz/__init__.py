"""Send malformed messages, bytes and HTTP/2 to a server, and malformed files to the readers."""
