"""The shared library: finding and loading it, and what it says of itself."""
