"""Pinned llama-cpp-python source + patches + our native sources -> one cached, installed wheel."""
