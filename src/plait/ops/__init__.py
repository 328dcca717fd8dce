"""Tensors in, tensors out. Each op has a plain reference beside its fast path; nothing here knows a module."""
