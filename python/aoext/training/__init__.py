"""Training with products of 8 bits; weights that train in int8 are aoext.tensors.int8_training.

products.py: a layer's three products and their operands
layers.py, convert.py: layers that make them, and models of such layers
"""
