"""Quantised weights in models: which layers get one, what they become, and what is reported."""
