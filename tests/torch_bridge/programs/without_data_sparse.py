"""Multiplies by a sparse tensor, which has no elements without data."""

import torch

torch.sparse.mm(torch.eye(3).to_sparse().cuda(), torch.ones(3, 3, device="cuda"))
