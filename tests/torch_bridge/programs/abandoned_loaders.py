"""Ends with iterators of loaders that still have workers: one kept by an error, one by itself."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.arange(10.0).view(10, 1))


def fails(items):
    raise RuntimeError("in a worker")


def failure():
    try:
        list(DataLoader(data, 2, num_workers=1, collate_fn=fails))
    except RuntimeError as error:
        return error


kept = failure()
assert "in a worker" in str(kept)
begun = iter(DataLoader(data, 2, num_workers=2, persistent_workers=True))
assert next(begun)[0].tolist() == [[0.0], [1.0]]
begun.itself = begun
