"""Checkpoints of transformers from one form to another, file by file.

What a source says of its weights makes quantised weights (checkpoints.Reader, or a config); these become
files of aoext or of another library (checkpoints.Writer).

No more than one file's tensors are in memory. A conversion that was interrupted goes on where it stopped.

job.py is the entrance; source.py reads what is converted, target.py writes what it becomes, own.py reads
aoext's own checkpoints.
"""

from __future__ import annotations

from aoext.convert.job import AOEXT, FORMATS, Conversion, convert_checkpoint
from aoext.convert.target import MARKER

__all__ = ["AOEXT", "FORMATS", "MARKER", "Conversion", "convert_checkpoint"]
