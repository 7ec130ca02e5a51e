"""Triton kernels that make one pass over a GPU's memory. Their callers have the same in torch.

Modules here import Triton, and are imported only where `devices.have_triton`.
"""
