"""What never has to be read again: prefixes in the KV cache, states set aside in RAM."""
