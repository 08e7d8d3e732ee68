"""The gRPC service: front ends that handle calls, an engine that forms batches, and workers that score
them."""
