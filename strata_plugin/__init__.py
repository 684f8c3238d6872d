"""The engine: importable without the server."""
