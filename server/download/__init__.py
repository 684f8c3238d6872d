"""Getting model files: from the hub's cache, the hub, a URL, a registry of containers."""
