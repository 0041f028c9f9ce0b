"""Which of two ways is faster: a kernel or ATen, fused or not, recomputed or kept, compiled or as captured.

`predictions.py` has the numbers, with what was measured for them; the other files decide by them. What is decided here changes
speed and never results.
"""
