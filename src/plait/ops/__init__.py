"""Tensors in, tensors out: attention, recurrences and convolutions, each with a plain reference.

For an op such as `gla`: `gla.py` has its equations, the reference (one step per token), the step and the chunked form
in torch's operations, and makes the GPU kernels one operator of a compiled graph; `gla_triton.py` explains how the
kernels work together and launches them; `gla_forward_triton.py` and `gla_backward_triton.py` have the kernels.
"""
