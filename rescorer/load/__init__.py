"""The load test of the service: open-loop clients in processes of their own, and what they see."""
