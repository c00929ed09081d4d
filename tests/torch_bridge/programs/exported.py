"""Modules that ``torch.export`` traces, against themselves on the host.

The same graphs, and the same numbers: as traced, decomposed, saved and loaded, trained.
"""

import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim, export, load, save


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.layer = nn.Linear(8, 24)
        self.register_buffer("num_calls", torch.zeros(()))

    def forward(self, tokens):
        self.num_calls.add_(1)
        q, k, v = self.layer(self.table(tokens)).chunk(3, -1)
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = torch.cond(tokens.sum() > 9, lambda x: x.sin(), lambda x: x.cos(), (x,))
        position = torch.arange(tokens.shape[1], device=tokens.device)
        return x + position[:, None] + torch.tensor([0.5], device=tokens.device)


class OwnDevice(nn.Module):
    def forward(self, x):
        return x.cpu() * 2, torch.ones(3, device="cuda") + x.sum()


def results(device):
    torch.manual_seed(0)
    model, tokens = Model().to(device), (torch.arange(12).reshape(2, 6) % 11).to(device)
    exported = export(model, (tokens,), dynamic_shapes=({0: Dim("batch"), 1: Dim.STATIC},))
    decomposed, file = exported.run_decompositions(), io.BytesIO()
    save(decomposed, file)
    file.seek(0)
    programs = [exported, decomposed, load(file), export(model, (tokens,), strict=True)]
    modules = [program.module() for program in programs]
    values = [model(tokens), *(module(tokens) for module in modules)]
    values += [modules[0](torch.cat([tokens, 0 * tokens])), *modules[1].buffers()]
    (modules[0](0 * tokens)).square().sum().backward()
    values += [parameter.grad for parameter in modules[0].parameters()]
    assert all(value.device.type == device for value in values)
    of_values = [node.meta.get("val") for node in exported.graph.nodes]
    kinds = {value.device.type for value in of_values if isinstance(value, torch.Tensor)}
    assert kinds == {device}
    return values, [[str(node.target) for node in item.graph.nodes] for item in programs]


host, graphs = results("cpu")
there, same_graphs = results("cuda")
torch.testing.assert_close([value.cpu() for value in there], host)
assert same_graphs == graphs
x = torch.ones(4, device="cuda")
on_host, own = export(OwnDevice(), (x,)).module()(x)
assert not on_host.is_cuda
assert own.tolist() == [5.0] * 3
print("as on the host")
