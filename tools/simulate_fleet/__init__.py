"""Simulate a fleet of servers: how many are needed, and what an autoscaler does: ``python -m
tools.simulate_fleet``.

Service times that ``rescorer load`` measured, or a distribution, and a pattern of arrivals come in; waiting
and response times, the number of replicas that keeps their 99th percentile below a limit, and plots go out.
"""
