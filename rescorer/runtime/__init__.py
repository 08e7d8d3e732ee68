"""What a process knows of itself: the CPU cores that it may use, and the time that each phase has taken.

Quotas of the machine and readings of clocks come in; counts of cores and seconds by phase go out.
"""
