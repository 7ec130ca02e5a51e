"""What runs in one pass over a GPU's memory, as Triton kernels; the same in torch stands where it is used.

Modules here import Triton, and are imported only where `devices.have_triton`.
"""
