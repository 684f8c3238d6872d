"""The page that the server shows to a browser."""
