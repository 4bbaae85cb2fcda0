"""The layers of aoext.models.layers by the name that pickles of whole models have."""

from aoext.models.layers import QuantizedEmbedding as QuantizedEmbedding
from aoext.models.layers import QuantizedLinear as QuantizedLinear
