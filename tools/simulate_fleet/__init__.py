"""Simulate a fleet of servers: how many are needed, and what an autoscaler does: ``python -m
tools.simulate_fleet``.

Service times, either measured by ``rescorer load`` or drawn from a distribution, and a pattern of arrivals
come in. Waiting and response times, the number of replicas for a 99th percentile below a limit, and plots
come out.
"""
