"""What a process knows of itself: its CPU cores, the time that each phase has taken, and its signals.

Quotas of the machine, readings of clocks and signals come in; counts of cores, seconds by phase and an
orderly end go out.
"""
