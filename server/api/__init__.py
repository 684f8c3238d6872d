"""One module per dialect of the API."""
