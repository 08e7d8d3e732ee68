"""Read files, JSON and regular expressions that strangers wrote, within bounds of memory and time.

Folders, bytes and patterns come in; open files, objects and compiled patterns come out, or an error that says
which bound was exceeded.
"""
