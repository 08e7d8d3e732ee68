"""The gRPC service: proto ↔ types, faults ↔ status codes, limits and server wiring; scores nothing itself."""
