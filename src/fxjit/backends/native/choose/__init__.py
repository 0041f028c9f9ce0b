"""Which of two ways is faster: a kernel or ATen, fused or not, recomputed or kept, compiled or as captured.

`machine.py` has the machine in a handful of numbers, which `probe.py` measures, and `predictions.py` counts and ratios, with
what was measured for them; `model.py` makes predictions of both, and the other files decide by them. What is decided here
changes speed and never results, but for the last bit of a number where a kernel and ATen round otherwise.
"""
