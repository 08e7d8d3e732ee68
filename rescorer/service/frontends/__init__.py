"""Several front-end processes on one port, started and replaced by a supervisor."""
