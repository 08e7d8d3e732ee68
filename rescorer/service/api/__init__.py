"""gRPC methods: check a request, plan it, hand it to the engine, and write the answer."""
