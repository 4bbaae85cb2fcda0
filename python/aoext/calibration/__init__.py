"""Quantising with data: values that fit what a model's layers get.

calibrate.py is the entrance, pipeline.py goes from block to block. blocks.py finds these, data.py makes
batches, inputs.py notes what reaches which layer, statistics.py sums it up. What is computed of it: gptq.py,
signround.py, and before them changes.py, which changes blocks without changing their outputs. rounding.py
makes a weight of it, resume.py keeps finished blocks.
"""

from aoext.calibration.calibrate import calibrate
from aoext.calibration.summary import CalibrationSummary

__all__ = ["CalibrationSummary", "calibrate"]
