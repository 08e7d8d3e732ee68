"""Programs that test the service itself and are not part of the wheel: ``python -m tools``."""
