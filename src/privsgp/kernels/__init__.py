"""Simulated noise on a GPU: Philox normals in plain torch, and a Triton kernel that does lines 8 to 14 in one pass."""
