"""Train a network: options, objectives, the loop, checkpoints and post-processing."""
