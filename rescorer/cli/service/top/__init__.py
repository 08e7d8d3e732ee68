"""Command ``rescorer top``: scrape the metrics of a running server and show what it does.

Takes the address of a server's metrics; prints a snapshot of its activity after each interval.
"""
