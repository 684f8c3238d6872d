"""What APIs that the native library does not speak are translated from and to: its own chat."""
