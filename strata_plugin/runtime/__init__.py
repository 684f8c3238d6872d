"""The only code that touches llama.cpp, through llama-cpp-python and libstrata."""
