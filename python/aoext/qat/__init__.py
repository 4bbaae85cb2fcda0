"""Training with quantised weights: QATConfig prepares a model for it and converts it afterwards.

A prepared layer keeps its plain weight as the parameter that trains, under its own name. Its forward
quantises it and takes the product that the converted layer will take, so converting changes no result; its
backward takes the gradient of the quantised weight for that of the plain one, but for values that saturate.

config.py is what users write; schemes.py says what a weight is quantised to; products.py has the forward and
backward as operators, layers.py the modules, prepare.py the two steps.
"""

from aoext.qat.config import QATConfig

__all__ = ["QATConfig"]
