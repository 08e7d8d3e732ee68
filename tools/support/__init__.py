"""What several tools need."""
