"""What PyTorch is told of the operators beside their schemas and kernels, which are C++.

calls.py: their names, and the arguments of calls
fakes.py: shapes and dtypes of results
gradients.py, choice.py, batches.py: derivatives, and by which product; torch.vmap
aoti.py: packages of AOTInductor
flops.py, versions.py: what counters and autograd ask for
"""

from aoext.operators import aoti as aoti  # these register with PyTorch
from aoext.operators import fakes as fakes
from aoext.operators import flops as flops
from aoext.operators import gradients as gradients
from aoext.operators import versions as versions
