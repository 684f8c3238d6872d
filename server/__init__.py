"""The HTTP layer: llama-server's flags, routes and wire formats in front of the engine process."""
