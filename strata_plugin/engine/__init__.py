"""The step loop, its process, and the client that the HTTP process uses."""
