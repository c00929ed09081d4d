"""Each function asserts where tensors are, and what moves copy.

python devices.py CASE
"""

import copy
import io
import os
import pickle
import sys
from functools import partial
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed._functional_collectives import AsyncCollectiveTensor, all_reduce
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


def results_views_and_gradients_are_where_their_operands_are() -> None:
    x = torch.ones(4, 4, device="cuda:2", requires_grad=True)
    for item in (
        x,
        x + 1,
        x.T,
        x[1:],
        x.detach(),
        x.clone(),
        x.sum(),
        x.new_zeros(3),
        torch.zeros_like(x),
        torch.cat([x, x]),
        *x.split(2),
        x.to(torch.float64),
        x.new_tensor(2.0),
        x.new_tensor(range(3), dtype=torch.int8),
    ):
        assert item.device == torch.device("cuda", 2), item
        assert item.is_cuda
        assert item.get_device() == 2
    (x * x).sum().backward()
    assert x.grad.device == x.device
    assert torch.ones(2).device.type == "cpu"
    assert torch.ones_like(x, device="cpu").device.type == "cpu"
    assert x.new_tensor([1], device="cpu").device.type == "cpu"
    assert torch.ones(2).new_tensor([1], device="cuda:3").device.index == 3


def the_types_of_old_programs_name_devices() -> None:
    x = torch.ones(2, 3, device="cuda:1")
    assert x.type() == "torch.cuda.FloatTensor"
    assert torch.ones(2).type() == "torch.FloatTensor"
    assert isinstance(x, torch.cuda.FloatTensor)
    assert not isinstance(x.cpu(), torch.cuda.FloatTensor)
    assert not isinstance(x, torch.cuda.HalfTensor)
    for item in (
        x.new(2, 3),
        x.new([1.0, 2.0]),
        x.new(torch.Size([4])),
        torch.ones(2).type_as(x),
        x.type(torch.float16),
        x.half().type_as(x),
        x.type("torch.cuda.LongTensor"),
    ):
        assert item.device == x.device, item
    assert x.new([1, 2]).tolist() == [1, 2]
    assert x.new([1]).dtype == torch.float32
    assert x.type("torch.cuda.LongTensor").dtype == torch.int64
    assert torch.ones(2).type("torch.cuda.IntTensor").device == torch.device("cuda", 0)
    assert x.type("torch.DoubleTensor").device.type == "cpu"
    tensor = torch.cuda.LongTensor([1, 2, 3])
    assert tensor.tolist() == [1, 2, 3]
    assert tensor.device == torch.device("cuda", 0)
    assert torch.cuda.FloatTensor(2, 3).shape == (2, 3)


def operations_that_are_made_of_others_stay_on_the_device_below_autograd() -> None:
    """Handlers of DTensor run there, and meet ``aten.to.dtype`` whole."""
    x = torch.ones(4, 4, device="cuda:1")
    with torch._C._AutoDispatchBelowAutograd():
        for item in (x.to(torch.bfloat16), x.reshape(2, 8), x.flatten(), x.T.reshape(16), x.cov()):
            assert item.device == x.device, item


def operations_with_a_kernel_of_their_own_are_not_taken_apart() -> None:
    x = torch.linspace(-4, 4, 999).to(torch.bfloat16)

    def gradient(x):
        x = x.clone().requires_grad_()
        torch.nn.functional.silu(x).sum().backward()
        return x.grad.tolist()

    assert gradient(x.cuda()) == gradient(x)


def a_result_that_nobody_waited_for_is_where_its_operand_is() -> None:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    x = torch.ones(4, device="cuda")
    total = all_reduce(x, "sum", dist.group.WORLD)
    assert type(total) is AsyncCollectiveTensor
    assert total.device == x.device
    assert total.is_cuda
    assert (total + x).tolist() == [3] * 4
    assert (total + x).device == x.device


def a_device_may_be_a_number() -> None:
    for result in (
        torch.empty(2, device=1),
        torch.arange(3, device=1),
        torch.eye(2, device=1),
        torch.zeros_like(torch.ones(1), device=1),
        torch.ones(2).to(1),
        torch.ones(2).cuda(1),
        torch.nn.Linear(2, 2, device=1).weight,
        torch.nn.Linear(2, 2).to(1).weight,
        torch.tensor([1.0], device=1),
        torch.full((2,), 1.0, device=1),
    ):
        assert result.device == torch.device("cuda", 1), result
    with torch.device("cuda:2"):
        for tensor in (torch.empty(2), torch.tensor([1]), torch.arange(3), torch.randn(2)):
            assert tensor.device.index == 2, tensor

    @torch.jit.script
    def scripted(x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) + torch.ones(3)

    assert scripted(torch.ones(3)).tolist() == [1, 1, 1]


def a_move_to_the_host_is_a_copy_and_a_move_to_where_it_is_is_none() -> None:
    x = torch.ones(4, device="cuda")
    for host in (
        x.cpu(),
        x.to("cpu"),
        x.to(device="cpu"),
        x.to(torch.device("cpu")),
        x.to(torch.zeros(1)),
    ):
        assert host.device.type == "cpu"
        host.add_(1)
        assert x.tolist() == [1, 1, 1, 1]
    assert x.to("cuda") is x
    assert x.cuda() is x
    assert x.to(device="cuda:0") is x
    assert x.to("cuda", torch.float64).dtype is torch.float64
    other = x.to("cuda:1")
    assert other.device.index == 1
    other.add_(1)
    assert x.tolist() == [1, 1, 1, 1]
    assert x.to("cuda", copy=True).data_ptr() != x.data_ptr()
    assert isinstance(x.cpu().numpy(), numpy.ndarray)
    with pytest.raises(TypeError) as raised:
        x.numpy()
    assert "Tensor.cpu()" in str(raised.value)


def tensors_of_two_devices_do_not_mix() -> None:
    x = torch.ones(2, 2, device="cuda:0")
    for other in ("cpu", "cuda:1"):
        y = torch.ones(2, 2, device=other)
        for mix in (
            lambda y: x + y,
            lambda y: x @ y,
            lambda y: torch.cat([x, y]),
            lambda y: x.add_(y),
            lambda y: x + (y + 1),
            lambda y: torch.cat([x, y.clone()]),
            lambda y: x * (y * 2),
        ):
            with pytest.raises(
                RuntimeError, match="Expected all tensors to be on the same device"
            ) as raised:
                mix(y)
            assert "cuda:0" in str(raised.value)
            assert other in str(raised.value)


def what_they_make_passes_through_modes_of_the_program() -> None:
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    host = [torch.randn(2, 8, size) for size in (6, 6, 4)]
    device = [item.cuda().requires_grad_() for item in host]
    causal = partial(scaled_dot_product_attention, is_causal=True)
    expected = causal(*host)
    recompute = partial(
        create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.PREFER_RECOMPUTE
    )
    result = checkpoint(causal, *device, use_reentrant=False, context_fn=recompute)
    result.sum().backward()
    torch.testing.assert_close(result.cpu(), expected)
    for mode in (FlopCounterMode(display=False), Mode()):
        with mode:
            torch.testing.assert_close(causal(*device).cpu(), expected)
        with mode, Mode():
            torch.testing.assert_close(causal(*device).cpu(), expected)
            kept = torch.ones(2, 8, 6)
            for mix in (
                lambda: device[0] + torch.ones(2, 8, 6),
                lambda kept=kept: device[0] + kept,
                lambda kept=kept: torch.add(*(kept, device[0])),
            ):
                with pytest.raises(RuntimeError) as raised:
                    mix()
                assert "cuda:0 and cpu" in str(raised.value)


def what_composite_operations_make_on_their_way_is_where_their_operands_are() -> None:
    x = torch.arange(10.0, device="cuda:1", requires_grad=True)
    tensor = torch.quantile(x, 0.5)
    assert tensor.item() == 4.5
    assert tensor.device == x.device
    host = torch.randn(50, 2, 20).log_softmax(2)
    targets, sizes = torch.randint(1, 20, (2, 30)), torch.full((2,), 50)
    loss = F.ctc_loss(host.cuda(), targets.cuda(), sizes, torch.full((2,), 30))
    assert loss.is_cuda
    torch.testing.assert_close(loss.cpu(), F.ctc_loss(host, targets, sizes, torch.full((2,), 30)))
    q = torch.randn(2, 3, 8, 4)
    mask = torch.randn(8, 8, requires_grad=True)
    value: tuple[dict[str, Any], ...] = ({"is_causal": True}, {"attn_mask": mask})
    for options in value:
        moved = {k: v.cuda() if k == "attn_mask" else v for k, v in options.items()}
        device = q.cuda().requires_grad_()
        tensor = F.scaled_dot_product_attention(device[0], device[0], device[0], **moved)
        torch.testing.assert_close(
            tensor.cpu(), F.scaled_dot_product_attention(q[0], q[0], q[0], **options)
        )


def gradients_that_are_made_up_are_where_their_inputs_are() -> None:
    x = torch.randn(4, device="cuda:1", requires_grad=True)
    (result,) = torch.autograd.grad(torch.sgn(x).sum(), x)
    assert result.device == x.device
    assert result.tolist() == [0] * 4
    assert (result + 1).sum().item() == 4
    assert torch.isclose(result, torch.zeros_like(x)).all()


def wrappers_and_subclasses_of_tensors_are_where_their_parts_are() -> None:
    parts = [torch.randn(2, 4), torch.randn(3, 4)]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged, device="cuda:1")
    assert nested.device == (nested * 2).device == torch.device("cuda:1")
    assert nested.is_cuda

    class Sub(torch.Tensor):
        pass

    mine = torch.ones(2, device="cuda:1").as_subclass(Sub)
    for item in (mine, mine + 1, torch.cat([mine, mine])):
        assert type(item) is Sub
        assert item.device == torch.device("cuda:1")
    with pytest.raises(RuntimeError) as raised:
        mine + torch.ones(2).as_subclass(Sub)
    assert "on the same device" in str(raised.value)


def classes_of_tensors_may_be_called() -> None:
    class Sub(torch.Tensor):
        def __init__(self, *value):
            super().__init__()
            self.given = len(value)

    sub = Sub([1.0, 2.0])
    assert type(sub) is Sub
    assert sub.given == 1
    assert sub.tolist() == [1, 2]
    assert Sub(2, 3).shape == (2, 3)
    assert Sub().shape == (0,)
    assert Sub(torch.ones(2)).tolist() == [1, 1]
    moved = sub.to("cuda:1")
    assert type(moved) is Sub
    assert moved.device == torch.device("cuda", 1) == (moved + 1).device  # type: ignore[attr-defined]
    below = torch.ones(2, device="cuda:1")
    assert Sub(below).device == below.device
    assert Sub(below).data_ptr() == below.data_ptr()
    assert type(torch.Tensor([1, 2])) is torch.Tensor


def causal_biases_of_attention_mask_what_their_matrix_masks() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, length, 16) for length in (8, 12, 12))
    for bias, diagonal in ((causal_upper_left(8, 12), 0), (causal_lower_right(8, 12), 4)):
        seen = torch.ones(8, 12, dtype=torch.bool).tril(diagonal)
        expected = scaled_dot_product_attention(query, key, value, attn_mask=seen)
        on_device = scaled_dot_product_attention(
            query.cuda(), key.cuda(), value.cuda(), attn_mask=bias
        )
        assert on_device.device == torch.device("cuda", 0)
        torch.testing.assert_close(on_device.cpu(), expected)


def packed_sequences_keep_their_sizes_on_the_host() -> None:
    layer = torch.nn.GRU(8, 16, batch_first=True)
    x, sizes = torch.randn(3, 7, 8), torch.tensor([7, 5, 2])

    def run(layer, x):
        packed = pack_padded_sequence(x, sizes, batch_first=True)
        assert packed.data.device == x.device
        assert packed.batch_sizes.device.type == "cpu"
        y, _ = pad_packed_sequence(layer(packed)[0], batch_first=True)
        y.sum().backward()
        return y

    expected = run(layer, x)
    gradient = layer.weight_hh_l0.grad
    layer.zero_grad()
    result = run(layer.cuda(), x.cuda())
    torch.testing.assert_close(result.cpu(), expected)
    torch.testing.assert_close(layer.weight_hh_l0.grad.cpu(), gradient)


def the_device_of_a_tensor_may_be_the_current_one_for_a_while() -> None:
    x = torch.ones(2, device="cuda:1")
    with torch.cuda.device_of(x):
        assert torch.cuda.current_device() == 1
        assert torch.ones(1, device="cuda").get_device() == 1
        with torch.cuda.device_of(x.cpu()):
            assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


def types_that_only_gpus_have_kernels_for_are_done_in_wider_ones() -> None:
    tokens = torch.tensor([0, 3, 3, 1], device="cuda")
    assert torch.histc(tokens.int(), bins=4, min=0, max=3).tolist() == [1, 1, 0, 2]
    assert torch.histc(tokens, bins=4, min=0, max=3).dtype == torch.int64
    x = torch.randn(2, 3, 4, 4, 4)
    tensor = F.avg_pool3d(x.bfloat16().cuda(), 2)
    expected = F.avg_pool3d(x.bfloat16().float(), 2).bfloat16()
    assert tensor.dtype == torch.bfloat16
    assert tensor.is_cuda
    assert torch.equal(tensor.cpu(), expected)
    refused = []
    for item in (tokens.cpu(), tokens):
        with pytest.raises((NotImplementedError, TypeError), match="Complex") as raised:
            torch.histc(item.to(torch.complex64), 4)
        refused.append((raised.type, str(raised.value)))
    assert refused[0] == refused[1]


def halves_are_refused_where_gpus_refuse_them() -> None:
    x = (torch.eye(3) + 1).cuda()
    for call in (
        *(torch.linalg.svd, torch.linalg.inv, torch.linalg.cholesky, torch.linalg.qr),
        *(torch.linalg.eigvals, torch.linalg.det, torch.geqrf, F.pdist),
        *(lambda y: torch.linalg.solve(y, y), lambda y: torch.polar(y, y)),
    ):
        call(x)
        for dtype in (torch.float16, torch.bfloat16):
            with pytest.raises(RuntimeError, match=r"Half|BFloat16"):
                call(x.to(dtype))


def scripts_are_loaded_to_a_device() -> None:
    x, layer = torch.ones(2, 3, device="cuda"), torch.nn.Linear(3, 4).cuda()
    saved = io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, x), saved)
    for place in ("cuda", "cuda:1", torch.device("cuda", 1), "cpu"):
        saved.seek(0)
        loaded = torch.jit.load(saved, map_location=place)
        expected = torch.device("cuda:0" if place == "cuda" else place)
        assert {parameter.device for parameter in loaded.parameters()} == {expected}
        assert torch.equal(loaded(x.to(expected)).cpu(), layer(x).cpu())


def whole_numbers_are_refused_where_gpus_refuse_them() -> None:
    # As PyTorch's database of operations says.
    of_gpus = {
        op.name: set(op.dtypesIfCUDA) - set(op.dtypes)
        for op in op_db
        if op.name in ("softmax", "log_softmax", "logcumsumexp", "frac", "histc", "abs", "trace")
    }
    numbers = torch.tensor([[1, 2, 3], [3, 2, 1]])
    calls = {
        "softmax": lambda x: x.softmax(0),
        "log_softmax": lambda x: x.log_softmax(1),
        "logcumsumexp": lambda x: x.logcumsumexp(0),
        "frac": lambda x: x.frac(),
        "histc": lambda x: x.histc(3, 1, 4),
        "abs": lambda x: x.abs(),
        "trace": lambda x: x.trace(),
    }
    for name, call in calls.items():
        for dtype in (torch.int32, torch.int64, torch.uint8, torch.bool):
            value = numbers.to(dtype)
            try:
                expected = call(value)
            except (NotImplementedError, RuntimeError) as error:
                expected = type(error)
            if isinstance(expected, torch.Tensor):
                assert torch.equal(call(value.cuda()).cpu(), expected)
            elif dtype in of_gpus[name]:
                assert call(value.cuda()).dtype in (dtype, torch.int64)
            else:
                with pytest.raises(expected):
                    call(value.cuda())


def sparse_rows_of_a_device_multiply() -> None:
    rows = torch.eye(4, device="cuda").to_sparse_csr()
    assert (rows @ torch.ones(4, 4, device="cuda")).sum().item() == 16


def sparse_tensors_are_on_the_device_of_their_parts() -> None:
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
    pointers, columns = torch.tensor([0, 1, 3]), torch.tensor([2, 0, 2])
    expected = torch.sparse_coo_tensor(indices, values, (2, 3)).to_dense()
    result = (
        torch.sparse_coo_tensor(indices.cuda(), values.cuda(), (2, 3)),
        torch.sparse_coo_tensor(indices, values, (2, 3), device="cuda"),
        torch.sparse_coo_tensor(indices.tolist(), values.tolist(), (2, 3), device="cuda"),
        torch.sparse_coo_tensor(indices, values, (2, 3)).cuda(),
        torch.sparse_csr_tensor(pointers, columns, values, (2, 3), device="cuda"),
        expected.cuda().to_sparse(),
        expected.cuda().to_sparse_csc(),
        expected.cuda().to_sparse_bsr((1, 3)),
    )
    place = torch.device("cuda:0")
    for item in result:
        assert item.is_cuda
        whole = item.coalesce() if item.layout is torch.sparse_coo else item
        assert item.to_dense().device == whole.values().device == place
        assert torch.equal(item.to_dense().cpu(), expected)
        assert item.cpu().device == torch.device("cpu")
        assert torch.equal(item.cpu().to_dense(), expected)
    rows = result[0]
    derived = (rows.t(), rows[1], rows * 2, rows.coalesce().indices(), rows.clone(), rows.sum())
    assert {entry.device for entry in derived} == {place}
    assert torch.sparse_coo_tensor(size=(2, 3), device="cuda").device == place
    assert torch.sparse_coo_tensor(indices.cuda(), values.cuda(), device="cpu").is_cpu


def memory_of_sparse_tensors_is_the_devices() -> None:
    eye = torch.eye(1024, device="cuda")
    before = torch.cuda.memory_allocated()
    rows = eye.to_sparse()
    # Two indices of eight bytes and an element of four, in blocks of 512.
    assert torch.cuda.memory_allocated() - before == 1024 * (2 * 8 + 4)
    del rows
    assert torch.cuda.memory_allocated() == before


def gradients_of_sparse_tensors_are_on_the_device() -> None:
    values = torch.tensor([1.0, 2.0], device="cuda", requires_grad=True)
    rows = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]], device="cuda"), values, (2, 2))
    torch.sparse.mm(rows, torch.tensor([[1.0, 2.0], [3.0, 4.0]], device="cuda")).sum().backward()
    assert values.grad.device == values.device
    assert values.grad.tolist() == [7, 3]
    weights = {}
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        table = torch.nn.Embedding(10, 4, sparse=True).to(device)
        optimizer = torch.optim.SparseAdam(table.parameters(), lr=0.1)
        table(torch.tensor([1, 1, 3], device=device)).sum().backward()
        assert table.weight.grad.device.type == device
        optimizer.step()
        weights[device] = table.weight.detach().cpu()
    assert torch.equal(weights["cpu"], weights["cuda"])


def storages_are_on_the_device_of_their_tensors() -> None:
    """As PyTorch's documentation of storages, and a CUDA build's errors, have it."""
    device = torch.device("cuda", 1)
    x = torch.arange(6.0, device=device)
    storage = x.untyped_storage()
    typed: Any = torch.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
    assert storage.device == typed.device == device
    assert storage.is_cuda
    assert storage.get_device() == 1
    assert storage.is_shared()
    assert storage.share_memory_() is storage
    assert typed.pickle_storage_type() == "FloatStorage"
    assert "cuda:1" in repr(storage)
    assert storage.clone().device == copy.deepcopy(storage).device == device
    assert storage.cpu().device == torch.device("cpu")
    assert storage.cpu().tolist() == x.cpu().untyped_storage().tolist()
    assert storage.cuda(1) is storage
    assert torch.ones(2).untyped_storage().cuda().device == torch.device("cuda", 0)
    before = torch.cuda.memory_allocated(1)
    bytes_ = torch.UntypedStorage(1 << 20, device="cuda:1")
    assert bytes_.device == device
    assert torch.cuda.memory_allocated(1) - before == 1 << 20
    assert torch.UntypedStorage([1, 2], device="cuda").tolist() == [1, 2]
    assert torch.empty(0, device=device).set_(storage).device == device
    zeros = torch.zeros(6, device=device)
    zeros.untyped_storage().copy_(torch.arange(6.0).untyped_storage())
    assert zeros.tolist() == x.tolist()
    for refused, why in (
        (lambda: torch.empty(0).set_(storage), "the devices must match"),
        (lambda: torch.empty(0).set_(x), "the devices must match"),
        (lambda: x.set_(torch.ones(2).untyped_storage()), "the devices must match"),
        (lambda: storage.pin_memory(), "only CPU memory can be pinned"),
    ):
        with pytest.raises((RuntimeError, TypeError), match=why):
            refused()
    for place, expected in ((None, device), ("cpu", torch.device("cpu")), ("cuda:0", "cuda:0")):
        for item in (storage, x, typed):
            file = io.BytesIO()
            torch.save(item, file)
            file.seek(0)
            loaded = torch.load(file, map_location=place, weights_only=False)
            assert loaded.device == torch.device(expected)
            assert loaded.tolist() == item.tolist()


def mistakes_beside_sparse_tensors_are_named() -> None:
    x, host = torch.ones(4, 4, device="cuda"), torch.ones(4, 4)
    rows = torch.eye(4, device="cuda").to_sparse()
    for mistake, reason in (
        (lambda: torch.addmm(x, rows, host), "at least two devices, cuda:0 and cpu"),
        (lambda: x.copy_(rows), "between dense and sparse"),
    ):
        with pytest.raises(RuntimeError) as raised:
            mistake()
        assert reason in str(raised.value)


def what_may_mix_does() -> None:
    x = torch.arange(6.0, device="cuda")
    assert (x + torch.tensor(1.0)).device == x.device  # a number
    assert x[torch.tensor([0, 1])].device == x.device  # an index
    x.copy_(torch.ones(6))
    host = torch.empty(6)
    host.copy_(x)
    assert host.tolist() == [1] * 6
    assert host.device.type == "cpu"


def devices_survive_saving_copying_and_pickling() -> None:
    x = torch.ones(3, device="cuda:1")
    for data in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert data.device == x.device
        assert data.tolist() == [1, 1, 1]
    file = io.BytesIO()
    torch.save({"x": x, "h": torch.ones(2)}, file)

    def load(where):
        file.seek(0)
        return torch.load(file, map_location=where)

    assert load(None)["x"].device == x.device
    assert load(None)["h"].device.type == "cpu"
    assert load("cpu")["x"].device.type == "cpu"
    assert load("cuda:3")["h"].device.index == 3
    assert load(torch.device("cuda"))["x"].device.index == 0
    model = torch.nn.Linear(2, 2).to("cuda")
    assert next(model.parameters()).is_cuda
    assert model(torch.ones(1, 2, device="cuda")).is_cuda
    assert model.cpu().weight.device.type == "cpu"
    with torch.device("cuda"):
        assert torch.nn.Linear(2, 2).weight.is_cuda


def device_random_numbers_have_a_seed_and_an_offset() -> None:
    torch.manual_seed(3)
    on_host = torch.rand(4)
    torch.manual_seed(3)
    on_device = torch.rand(4, device="cuda")
    assert on_device.tolist() == on_host.tolist()
    state = torch.cuda.get_rng_state()
    first, host = torch.rand(4, device="cuda"), torch.rand(4)
    assert first.tolist() != on_device.tolist()
    torch.cuda.set_rng_state(state)
    assert torch.rand(4, device="cuda").tolist() == first.tolist()
    generator = torch.cuda.default_generators[0]
    generator.set_state(state)
    assert torch.rand(4, device="cuda").tolist() == first.tolist()
    assert generator.initial_seed() == 3
    assert generator.get_state().tolist() != state.tolist()
    torch.manual_seed(3)
    assert torch.rand(4).tolist() == on_host.tolist()  # the device has not used the host's numbers
    for module in (torch.cuda, torch.cuda.random):
        states = module.get_rng_state_all()
        assert len(states) == torch.cuda.device_count()
        first = torch.rand(4, device="cuda")
        assert module.get_rng_state_all()[0].tolist() != states[0].tolist()
        module.set_rng_state_all(states)
        assert module.get_rng_state().tolist() == states[0].tolist()
        assert torch.rand(4, device="cuda").tolist() == first.tolist()
        module.seed_all()
        assert module.initial_seed() != 3
        module.manual_seed_all(3)
    for seed in (2**64 - 1, 2**63, -1, -(2**63)):
        torch.manual_seed(seed)
        assert torch.cuda.initial_seed() == torch.initial_seed() == seed % 2**64
        state = torch.cuda.get_rng_state()
        first, host = torch.rand(4, device="cuda"), torch.rand(4)
        assert first.tolist() == host.tolist()
        with torch.random.fork_rng(devices=[0]):
            torch.rand(9, device="cuda")
        torch.cuda.set_rng_state(state)
        assert torch.rand(4, device="cuda").tolist() == first.tolist()
    with pytest.raises(RuntimeError) as raised:
        torch.cuda.manual_seed(2**64)
    assert "64 bits" in str(raised.value)
    x = torch.ones(1000, device="cuda")
    kept = torch.nn.functional.dropout(x, 0.25)
    assert kept.device == x.device
    assert 600 < (kept > 0).sum().item() < 900


def the_module_describes_the_machine() -> None:
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 4
    assert torch.cuda.current_device() == 0
    torch.cuda.set_device("cuda:3")
    assert torch.cuda.current_device() == 3
    assert torch.ones(1, device="cuda").device.index == 3
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 3
    with pytest.raises(AssertionError, match="cuda:4 does not exist"):
        torch.cuda.get_device_properties(4)
    properties = torch.cuda.get_device_properties(0)
    assert properties.total_memory > 1 << 30
    assert "ahbm" in properties.name
    assert torch.accelerator.current_accelerator() == torch.device("cuda")
    assert properties.is_integrated == 0
    assert properties.shared_memory_per_block <= properties.shared_memory_per_block_optin
    assert torch.accelerator.device_count() == 4


def a_tensor_may_be_given_another_class() -> None:
    class Weight(torch.nn.Parameter):
        """As vLLM's: with functions of its own, and no dispatch."""

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(4, device="cuda")
    x.__class__ = Weight
    assert (x.detach() + 1).sum().item() == 8
    shape = torch.ones(4, device="meta")
    shape.__class__ = Weight
    assert shape.data.device == x.data.to("meta").device == torch.device("meta")


def tensors_with_functions_of_their_own_see_the_calls_that_pytorch_shows_them() -> None:
    calls = [
        lambda x: x.device,
        lambda x: (x.is_cuda, x.is_cpu, x.is_meta),
        lambda x: x.to("cpu"),
        lambda x: x.to(torch.float64),
        lambda x: x.cpu(),
        lambda x: x.get_device(),
        lambda x: x.new_tensor([1.0]),
        lambda x: x.copy_(torch.zeros(3)),
        lambda x: x.tolist(),
        lambda x: x.cpu().numpy(),
    ]
    seen = _seen_by_a_subclass(calls, torch.ones(3, device="cuda"))
    # PyTorch without kernbench, for which the other names are those of the CPU's tensors.
    assert seen == [
        ["__get__"],
        ["__get__"] * 3,
        ["to"],
        ["to"],
        ["cpu"],
        ["get_device"],
        ["new_tensor"],
        ["copy_"],
        ["tolist"],
        ["cpu", "numpy"],
    ]


def _add_one(x: torch.Tensor) -> None:
    x.add_(1)


def _seen_by_a_subclass(calls: list[Any], tensor: torch.Tensor) -> list[list[str]]:
    names: list[str] = []

    class Logged(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            names.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    seen = []
    logged = tensor.as_subclass(Logged)
    for call in calls:
        names.clear()
        call(logged)
        seen.append(list(names))
    return seen


def classes_and_modes_are_asked_about_the_functions_that_programs_name() -> None:
    """Tables of functions that are handled are how programs write both."""
    handled = {
        torch.Tensor.to: "to",
        torch.Tensor.cuda: "cuda",
        torch.Tensor.numpy: "numpy",
        torch.Tensor.is_cuda.__get__: "is_cuda",
        torch.zeros_like: "zeros_like",
        torch.zeros: "zeros",
        torch.tensor: "tensor",
    }

    class Table(torch.Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return handled.get(func, NotImplemented)

    table = torch.ones(3, device="cuda").as_subclass(Table)
    calls = (lambda: table.to("cpu"), table.cuda, table.numpy, lambda: table.is_cuda)
    assert [call() for call in calls] == ["to", "cuda", "numpy", "is_cuda"]
    assert torch.zeros_like(table, device="cpu") == "zeros_like"
    for refused in (table.cpu, table.tolist, lambda: table.device, lambda: torch.ones_like(table)):
        with pytest.raises(TypeError):
            refused()

    asked: list[str] = []

    class Asked(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            asked.append(handled.get(func, func.__name__))
            return func(*args, **kwargs or {})

    with torch.device("cuda:1"), Asked():
        made = torch.zeros(2), torch.tensor([1.0]), torch.zeros_like(torch.empty(1))
        host = torch.tensor([1.0], device="cpu")
    assert asked == ["zeros", "tensor", "empty", "zeros_like", "tensor"]
    assert {item.device for item in made} == {torch.device("cuda:1")}
    assert host.device == torch.device("cpu")


def a_wrapper_is_on_the_device_that_it_was_made_for() -> None:
    class Wrapper(torch.Tensor):
        """With a tensor under a name of its own."""

        @staticmethod
        def __new__(cls, held: torch.Tensor) -> Any:
            return torch.Tensor._make_wrapper_subclass(cls, held.shape, device=held.device)

        def __init__(self, held: torch.Tensor) -> None:
            self.held = held

        @classmethod
        def __torch_dispatch__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            plain = [item.held if isinstance(item, Wrapper) else item for item in args]
            return Wrapper(func(*plain, **kwargs or {}))

    x: Any = Wrapper(torch.ones(3, device="cuda:1"))
    assert {item.device for item in (x, x * 2, x.detach())} == {torch.device("cuda:1")}
    assert (x.is_cuda, x.get_device()) == (True, 1)
    assert x.cpu().device == x.to("cpu").held.device == torch.device("cpu")
    assert Wrapper(torch.ones(3)).device == torch.device("cpu")


def functions_that_are_replaced_are_pickled_and_traced_by_name() -> None:
    named = (torch.zeros, torch.tensor, torch.zeros_like, torch.Tensor.to, torch.Tensor.cuda)
    for function in named:
        assert pickle.loads(pickle.dumps(function)) is function

    # Whose annotations would be kept, as text where a module says so.
    graph = torch.fx.symbolic_trace(
        lambda x: torch.zeros_like(x.to(torch.float64)) + torch.ones_like(x)
    )
    assert "torch.zeros_like(to)" in graph.code
    again = pickle.loads(pickle.dumps(graph))(torch.ones(3, device="cuda"))
    assert (again.device, again.tolist()) == (torch.device("cuda", 0), [1.0, 1.0, 1.0])


def what_is_written_after_it_was_saved_for_gradients_is_refused() -> None:
    """As on a GPU: kernels for lists of tensors and of programs count versions, too."""
    library = torch.library.Library("kernbench_versions", "DEF")
    library.define("add_one(Tensor(a!) x) -> ()")
    library.impl("add_one", _add_one, "CUDA")
    own = torch.ops.kernbench_versions.add_one

    def step(weight: torch.Tensor) -> None:
        torch.optim.SGD([weight], lr=0.1, foreach=True).step()

    for write in (step, lambda weight: torch._foreach_zero_([weight.detach()]), own):
        weight = torch.nn.Parameter(torch.ones(3, 3, device="cuda"))
        x = torch.ones(3, 3, device="cuda", requires_grad=True)
        loss = (x @ weight).sum()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            write(weight)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    with torch.inference_mode():
        x = torch.ones(3, device="cuda")
        torch._foreach_add_([x], 1)
        assert x.tolist() == [2, 2, 2]


def layers_that_learn_their_shapes_move_before_they_know_them() -> None:
    for move in (
        lambda layer: layer.to("cuda"),
        lambda layer: layer.cuda(),
        lambda layer: layer.half().cuda().float(),
        lambda layer: layer.cuda().cpu().to("cuda:0"),
    ):
        model = move(torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.LazyBatchNorm1d()))
        assert model(torch.ones(3, 7, device="cuda")).shape == (3, 4)
        weights = [*model.parameters(), *model.buffers()]
        assert {item.device for item in weights} == {torch.device("cuda", 0)}
    with pytest.raises(ValueError, match="uninitialized parameter"):
        torch.nn.LazyLinear(4).cuda().weight.tolist()


def functions_are_recorded_with_the_devices_that_they_name(mode: str = "real") -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        made = torch.arange(3, device=x.device) + torch.full((3,), 2.0, device="cuda")
        return (x.cpu() + torch.ones(3)).cuda() * made + x.new_zeros(3) + torch.ones_like(x)

    x = torch.arange(3.0, device="cuda")
    graph = make_fx(function, tracing_mode=mode)(torch.ones(3, device="cuda"))
    named = [node.kwargs["device"].type for node in graph.graph.nodes if "device" in node.kwargs]
    assert named == ["cuda", "cuda", "cpu", "cpu", "cuda"]
    assert graph(x).device == x.device
    assert graph(x).tolist() == function(x).tolist() == [3.0, 7.0, 13.0]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
