"""Random calls without end, from a printed seed: `python -m tests.fuzz --seconds 600 --seed 7`.

good_calls.py: calls of operators, held against float64
bad_calls.py: calls of operators with wrong dtypes, shapes, devices, sizes and storages
helper_calls.py: calls, good and bad, of the Python helpers and of the tensors' constructors
weights.py: views, copies and products of quantised weights beside those of plain ones
files.py: damaged files, for load_model
readers.py: damaged settings and tensors, for the readers of other libraries' checkpoints
draws.py: what they draw from
batch.py: the cases of one process; __main__.py: the command, which starts these processes

A kind of case is a function that draws one from random numbers and returns what it is, in words, and a
function that tries it: that gives "ran", or "raised" where a call was refused as it should be, and fails
with an AssertionError. A process that dies is a failure of the case that it was at.
"""
