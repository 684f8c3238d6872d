"""C++ sources of libstrata; strata.h is the interface."""
