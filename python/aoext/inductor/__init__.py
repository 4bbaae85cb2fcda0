"""torch.compile: passes that leave nothing between the operators of `ao` that a kernel could have done.

The passes work on Inductor's graphs, for every device, and are on from the moment that Inductor is loaded
in a process that has imported aoext. Nothing of Inductor is imported before; the environment variable
AOEXT_INDUCTOR=0, `configure(enabled=False)` or `with patch(enabled=False):` turns them off::

    with aoext.inductor.patch(share_quantization=False):
        torch.compile(model)(x)

Options count while code is compiled, which is at its first call.

docs/compile.md lists what they do; `options.py` the switches, one for each pass.
"""

from aoext.inductor.hook import install
from aoext.inductor.options import Options, configure, current, patch

__all__ = ["Options", "configure", "current", "install", "patch"]
