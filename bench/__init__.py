"""Side-by-side benchmark of strata-server and llama-server; run with `python -m bench`."""
