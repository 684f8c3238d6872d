"""Kernels that our patches put into llama.cpp: right, and the same results where that is said."""
