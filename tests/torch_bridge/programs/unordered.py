"""Operations that touch the same memory, with what orders them and without.

Writes to a file, by case, what is wrong with each variant: the error's class and its text.
"""

import json
import os
import pickle
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import triton
import triton.language as tl

n = 1 << 16
bad = False
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
main, side = torch.cuda.current_stream(), torch.cuda.Stream()


@triton.jit
def double(x_ptr, y_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at))


def wait(stream, other):
    if not bad:
        stream.wait_stream(other)


def on(stream):
    return torch.cuda.stream(stream)


def ones(**kwargs):
    tensor = torch.ones(n, device="cuda", **kwargs)
    torch.cuda.synchronize()
    return tensor


def consumer_on_a_side_stream():
    x = ones()
    x += 1
    wait(side, main)
    with on(side):
        y = x * 2
    side.synchronize()
    print(y[0].item())


def consumer_on_the_main_stream():
    x = ones()
    with on(side):
        x += 1
    wait(main, side)
    print(x.sum().item())


def new_tensor_of_a_side_stream():
    with on(side):
        x = torch.ones(n, device="cuda")
    wait(main, side)
    assert (x + 1).max() == 2


def item_of_a_side_stream():
    x = ones()
    with on(side):
        x += 1
        if not bad:
            x[0].item()
    print(x[0].item())


def overwritten_while_read():
    x = ones()
    side.wait_stream(main)
    with on(side):
        y = x * 2
    wait(main, side)
    x.zero_()
    side.synchronize()
    print(y[0].item())


def event_recorded_too_early():
    x, event = ones(), torch.cuda.Event()
    if bad:
        event.record()
    x += 1
    if not bad:
        event.record()
    with on(side):
        event.wait()
        y = x * 2
    side.synchronize()
    print(y[0].item())


def event_of_another_stream():
    x, third = ones(), torch.cuda.Stream()
    with on(side):
        x += 1
    event = (third if bad else side).record_event()
    main.wait_event(event)
    x += 1
    torch.cuda.synchronize()


def event_recorded_again():
    x, event = ones(), torch.cuda.Event()
    with on(side):
        event.record()
        x += 1
        if not bad:
            event.record()
    event.synchronize()
    print(x[0].item())


def two_writers():
    x = ones()
    with on(side):
        x[: n // 2] = 2
    x[n // 2 - bad :] = 3
    torch.cuda.synchronize()


def waits_through_a_third_stream():
    x, third = ones(), torch.cuda.Stream()
    x += 1
    third.wait_stream(main)
    wait(side, third)
    with on(side):
        x.mul_(2)
    torch.cuda.synchronize()


def strided_halves():
    x = torch.ones(64, 64, device="cuda")
    torch.cuda.synchronize()
    with on(side):
        x[:, ::2] += 1
    x[:, 0 if bad else 1 :: 2] += 1
    torch.cuda.synchronize()


def kernels():
    x, y, z = ones(), ones(), ones()
    side.wait_stream(main)
    with on(side):
        double[(n // 256,)](x, y, BLOCK=256)
    wait(main, side)
    double[(n // 256,)](y, z, BLOCK=256)


def a_kernel_and_an_operation():
    x, y = ones(), ones()
    with on(side):
        double[(n // 256,)](x, y, BLOCK=256)
    wait(main, side)
    y.add_(1)


def freed_while_a_side_stream_reads():
    x = ones()
    with on(side):
        y = x * 2
    if not bad:
        x.record_stream(side)
    del x
    z = torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    print(y[0].item(), z[0].item())


def freed_in_parts():
    x = torch.ones(1 << 22, device="cuda")
    torch.cuda.synchronize()
    with on(side):
        y = x * 2
    del x
    if not bad:
        main.wait_stream(side)
    small = [torch.zeros(1 << 19, device="cuda") for _ in range(4)]
    torch.cuda.synchronize()
    print(y[0].item(), small[0][0].item())


def freed_while_the_main_stream_reads():
    with on(side):
        x = torch.ones(n, device="cuda")
    main.wait_stream(side)
    y = x * 2
    if not bad:
        x.record_stream(main)
    del x
    with on(side):
        z = torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    print(y[0].item(), z[0].item())


def freed_after_its_stream_has_waited():
    x = ones()
    with on(side):
        y = x * 2
    wait(main, side)
    del x
    z = torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    print(y[0].item(), z[0].item())


def _read(host, how):
    {
        "item": lambda: host[-1].item(),
        "numpy": lambda: (host.numpy().sum(), torch.cuda.synchronize()),
        "tolist": lambda: host.tolist(),
        "print": lambda: print(host),
        "operation": lambda: host + 1,
        "bool": lambda: bool((host > 0).all()),
    }[how]()


def pinned_memory_read_before_its_copy_has_ended(how):
    x, host = ones(), torch.empty(n, pin_memory=True)
    host.copy_(x, non_blocking=True)
    if not bad:
        torch.cuda.current_stream().synchronize()
    _read(host, how)


def view_of_numpy(when):
    x, host = ones(), torch.empty(n, pin_memory=True)
    host.copy_(x, non_blocking=True)
    view = host.numpy()
    if not bad:
        torch.cuda.synchronize()
    print(view.sum())
    del view
    torch.zeros(1, device="cuda") if when == "operation" else torch.cuda.synchronize()


def shown_from_a_side_stream(how):
    x = ones()
    with on(side):
        x += 1
    wait(main, side)
    {
        "repr": lambda: repr(x),
        "format": lambda: f"{x}",
        "row": lambda: print(x[:2]),
        "list": lambda: str([x[0]]),
        "parameter": lambda: repr(torch.nn.Parameter(x)),
        "pickle": lambda: pickle.dumps(x),
        "tolist": lambda: x.tolist(),
    }[how]()


def copied_to_the_host_without_blocking():
    host = ones().to("cpu", non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    if not bad:
        event.synchronize()
    print(host[0].item())


def polled_until_it_has_ended():
    x, host, event = ones(), torch.zeros(n, pin_memory=True), torch.cuda.Event()
    host.copy_(x, non_blocking=True)
    event.record()
    while not event.query() and not bad:
        pass
    print(host[0].item() if bad else host.sum().item())


def pinned_memory_overwritten_before_its_copy_has_run(how):
    host = torch.ones(n, pin_memory=True)
    x = host.to("cuda", non_blocking=True)
    if not bad:
        torch.cuda.synchronize()
    {
        "fill": lambda: host.fill_(2),
        "element": lambda: host.__setitem__(-1, 2),
        "add": lambda: host.add_(1),
        "copy": lambda: host.copy_(torch.zeros(n)),
        "normal": lambda: host.normal_(),
    }[how]()
    print(x[0].item())


def a_staging_buffer_is_filled_again():
    host, result = torch.empty(n, pin_memory=True), []
    for step in range(3):
        host.fill_(step)
        result.append(host.to("cuda", non_blocking=True))
        if not bad:
            torch.cuda.current_stream().synchronize()
    assert [x[0].item() for x in result] == [0, 1, 2]


def prefetched():
    batches = [torch.full((n,), float(index)).pin_memory() for index in range(4)]
    weight = ones()

    def fetch(number):
        with on(side):
            return batches[number].to("cuda", non_blocking=True)

    following, total = fetch(0), torch.zeros((), device="cuda")
    for number in range(4):
        wait(main, side)
        batch = following
        if not bad:
            batch.record_stream(main)
        if number < 3:
            following = fetch(number + 1)
        total += (batch * weight).sum()
    assert total.item() == n * 6


def input_of_a_graph():
    x = ones()
    graph = _graph(lambda: x * 2)
    with on(side):
        x.copy_(torch.full((n,), 3.0, device="cuda"))
    wait(main, side)
    graph[0].replay()
    torch.cuda.synchronize()
    print(graph[1][0].item())


def output_of_a_graph():
    x = ones()
    graph, y = _graph(lambda: x * 2)
    side.wait_stream(main)
    with on(side):
        graph.replay()
    wait(main, side)
    print(y.sum().item())


def input_of_a_graph_is_replaced_too_early():
    x = ones()
    graph, y = _graph(lambda: x * 2)
    with on(side):
        graph.replay()
    wait(main, side)
    x.fill_(2)
    torch.cuda.synchronize()
    print(y[0].item())


def branches_of_a_graph(how):
    x, z = ones(), ones()

    def compute():
        stream = torch.cuda.current_stream()
        side.wait_stream(stream)
        with on(side):
            _change(x, z, how)
        wait(stream, side)
        y = z * 2
        stream.wait_stream(side)
        return y

    graph, y = _graph(compute)
    for _ in range(2):
        graph.replay()
    print(y[0].item())


def _change(x, z, how):
    if how == "kernel":
        double[(n // 256,)](x, z, BLOCK=256)
    elif how == "collective":
        dist.all_reduce(z)
    else:
        z.add_(x)


def branches_of_a_graph_that_write():
    x = ones()

    def compute():
        stream = torch.cuda.current_stream()
        side.wait_stream(stream)
        with on(side):
            x[: n // 2] = 2
        x[n // 2 - bad :] = 3
        stream.wait_stream(side)

    _graph(compute)[0].replay()
    torch.cuda.synchronize()


def a_branch_that_joins_late():
    x = ones()

    def compute():
        stream = torch.cuda.current_stream()
        x.add_(1)
        side.wait_stream(stream)
        x.mul_(2)
        wait(side, stream)
        with on(side):
            y = x + 1
        stream.wait_stream(side)
        return y

    graph, y = _graph(compute)
    graph.replay()
    print(y[0].item())


def an_event_too_early_in_a_graph():
    x, event = ones(), torch.cuda.Event()

    def compute():
        stream = torch.cuda.current_stream()
        side.wait_stream(stream)
        with on(side):
            if bad:
                event.record()
            x.add_(1)
            if not bad:
                event.record()
        stream.wait_event(event)
        y = x * 2
        stream.wait_stream(side)
        return y

    graph, y = _graph(compute)
    graph.replay()
    print(y[0].item())


def temporaries_of_branches_of_a_graph():
    x, z = ones(), ones()

    def compute():
        stream = torch.cuda.current_stream()
        side.wait_stream(stream)
        y = (((x + 1) * 2).relu() + 1).sum()
        with on(side):
            z.copy_((((z + 1) * 2).relu() + 1) / 3)
            if bad:
                x.zero_()
        total = ((x + 2) * 3).sum()
        stream.wait_stream(side)
        return y + total + z.sum()

    graph, y = _graph(compute)
    for _ in range(2):
        graph.replay()
    print(y.item())


def a_backward_pass_of_a_branch_of_a_graph():
    weight, third = torch.ones(64, 64, device="cuda", requires_grad=True), torch.cuda.Stream()
    weight.grad = torch.zeros_like(weight)

    def compute():
        stream = torch.cuda.current_stream()
        side.wait_stream(stream)
        with on(side):
            loss = (weight @ weight).sum()
        stream.wait_stream(side)
        third.wait_stream(side)
        loss.backward()
        wait(third, stream)
        with on(third):
            norm = weight.grad.norm()
        stream.wait_stream(third)
        return norm

    graph, norm = _graph(compute)
    graph.replay()
    print(norm.item())


def replays_of_a_graph_on_two_streams():
    x = ones()
    graph, y = _graph(lambda: x * 2)
    side.wait_stream(main)
    with on(side):
        graph.replay()
    # It waits for the one before, but nothing else does.
    graph.replay()
    if bad:
        with on(side):
            y.zero_()
    torch.cuda.synchronize()


def graphs_on_two_streams():
    x = ones()
    first, y = _graph(lambda: x * 2)
    second, z = _graph(lambda: y + 1)
    side.wait_stream(main)
    with on(side):
        first.replay()
    wait(main, side)
    second.replay()
    torch.cuda.synchronize()
    print(z[0].item())


def memory_that_a_capture_gives_out_again(how):
    x, z = ones(), ones()

    def compute():
        here = torch.cuda.current_stream()
        t = x * 2
        side.wait_stream(here)
        with on(side):
            y = t + 1
        if not bad and how == "record":
            t.record_stream(side)
        if not bad and how == "wait":
            here.wait_stream(side)
        del t
        w = z[: n if how == "record" else n // 2] * 3
        here.wait_stream(side)
        return y, w

    graph, (y, w) = _graph(compute)
    for _ in range(2):
        graph.replay()
    assert y[0].item() == w[0].item() == 3


def a_temporary_of_a_branch():
    x = ones()

    def compute():
        here = torch.cuda.current_stream()
        side.wait_stream(here)
        with on(side):
            t = x * 2
        wait(here, side)
        y = t + 1
        here.wait_stream(side)
        return y

    graph, y = _graph(compute)
    graph.replay()
    print(y[0].item())


def graphs_of_one_pool_on_two_streams():
    x, z = ones(), ones()
    first, _ = _graph(lambda: x * 2 + 1)
    second, y = _graph(lambda: z * 3, pool=first.pool())
    first.replay()
    wait(side, main)
    with on(side):
        second.replay()
    torch.cuda.synchronize()
    assert y[0].item() == 3


def lost_to_a_graph_of_its_pool(how):
    x, z = ones(), ones()
    first, y = _graph(lambda: x * 2 + 1 if how == "temporary" else x * 2)
    if how == "dropped" and bad:
        del y
    second, y = _graph(lambda: z * 3, pool=first.pool())
    for graph in (second, first) if bad else (first, second):
        graph.replay()
    assert y.sum().item() == 3 * n


def _graph(compute, **options):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        y = compute()
    return graph, y


def copied_between_devices():
    x = ones()
    with on(side):
        x += 1
    wait(main, side)
    y = x.to("cuda:1")
    torch.cuda.synchronize()
    print(y[0].item())


def unwritten(how):
    x = (torch.empty if bad else torch.ones)(n, device="cuda")
    print(
        {
            "sum": lambda: x.sum().item(),
            "item": lambda: x[3].item(),
            "add": lambda: (x + 1)[0].item(),
            "in place": lambda: x.mul_(2),
            "product": lambda: x.view(256, 256) @ x.view(256, 256),
            "copied": lambda: x.clone().half().max().item(),
            "on the host": lambda: x.cpu().tolist()[:3],
            "reduced": lambda: (dist.all_reduce(x), x.sum().item()),
        }[how]()
    )


def unwritten_added_to():
    x, y = torch.empty(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
    # Of what a product is added to, nothing is read where it counts for nothing.
    assert torch.addmm(x, y, y, beta=int(bad)).sum().item() == 8**3


def half_written():
    x = torch.empty(n, device="cuda")
    x[: n // 2] = 1
    if not bad:
        x[n // 2 :].copy_(x[: n // 2])
    assert x.mean().item() == 1


def half_written_copied():
    x = torch.empty(n, device="cuda")
    x[: n // 2 if bad else n] = 1
    print(x.clone().cpu().sum())


def half_written_by_a_kernel():
    x, y = ones(), torch.empty(n, device="cuda")
    double[(n // 256 // (1 + bad),)](x, y, BLOCK=256)
    assert y.sum().item() == 2 * n


def a_columns_buffer():
    x = torch.empty(64, 64, device="cuda")
    for column in range(64 - bad):
        x[:, column] = column
    print(x.sum().item())


def reduced_before_its_stream_is_waited_for():
    x = ones()
    with on(side):
        x += 1
    wait(main, side)
    dist.all_reduce(x)
    torch.cuda.synchronize()


def waited_for_by_another_stream():
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    with on(side):
        work.wait()
    if not bad:
        work.wait()
    assert x.sum().item() == n * dist.get_world_size()


def overwritten_while_it_is_sent():
    x, y = ones(), [torch.empty(n, device="cuda") for _ in range(dist.get_world_size())]
    work = dist.all_gather(y, x, async_op=True)
    with on(side):
        work.wait()
    wait(main, side)
    x.zero_()
    torch.cuda.synchronize()


def the_last_of_several():
    tensors = [ones() for _ in range(3)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    with on(side):
        # NCCL runs them one after the other.
        for work in works[: 2 if bad else 3]:
            work.wait()
        for work in works:
            if work is works[-1] and bad:
                torch.cuda.Stream().wait_stream(main)
    main.wait_stream(side)
    if bad:
        with on(torch.cuda.Stream()):
            works[-1].wait()
    print(tensors[-1].sum().item())


def freed_while_it_is_reduced():
    x = ones()
    work = dist.all_reduce(x, async_op=True)
    with on(side):
        work.wait()
    wait(main, side)
    del x, work
    y = torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    print(y[0].item())


def freed_while_what_a_recorded_stream_waits_for_reads():
    x = ones()
    with on(side):
        dist.all_reduce(x)
    if not bad:
        # It has waited for the collective's stream, which is not recorded itself.
        x.record_stream(side)
    del x
    y = torch.zeros(n, device="cuda")
    torch.cuda.synchronize()
    print(y[0].item())


def a_backward_pass_on_a_side_stream():
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    side.wait_stream(main)
    with on(side):
        loss = (weight @ weight).sum()
    wait(main, side)
    (loss * 2 if bad else loss).backward()
    print(weight.grad.sum().item())


def a_hook_on_another_stream_in_a_backward_pass_of_a_side_stream():
    weight, third = torch.ones(64, 64, device="cuda", requires_grad=True), torch.cuda.Stream()
    side.wait_stream(main)
    with on(side):
        y = weight @ weight
        loss = y.sum()

    def hook(gradient):
        if not bad:
            third.wait_stream(torch.cuda.current_stream())
        with on(third):
            return gradient * 2 if bad else gradient.abs().record_stream(third)

    y.register_hook(hook)
    loss.backward()
    main.wait_stream(side)
    print(weight.grad.sum().item())


def gradients_used_on_another_stream():
    weight = torch.ones(64, 64, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    (weight @ weight).sum().backward()
    wait(side, main)
    with on(side):
        norm = weight.grad.norm()
    side.synchronize()
    print(norm.item())


def on_a_callers_stream():
    """A library's stream: an event's wait() without a stream makes the current one wait."""
    x, event = ones(), torch.cuda.Event()
    with on(side):
        x += 1
        event.record()
        if bad:
            event.wait()
    if not bad:
        event.wait()
    x += 1
    torch.cuda.synchronize()


VARIANTS = {
    branches_of_a_graph: ("operation", "kernel", "collective"),
    memory_that_a_capture_gives_out_again: ("record", "wait"),
    lost_to_a_graph_of_its_pool: ("temporary", "dropped"),
    view_of_numpy: ("operation", "wait"),
    shown_from_a_side_stream: (
        *("repr", "format", "row", "list", "parameter", "pickle", "tolist"),
    ),
    pinned_memory_read_before_its_copy_has_ended: (
        *("item", "numpy", "tolist", "print", "operation", "bool"),
    ),
    pinned_memory_overwritten_before_its_copy_has_run: (
        *("fill", "element", "add", "copy", "normal"),
    ),
    unwritten: ("sum", "item", "add", "in place", "product", "copied", "on the host", "reduced"),
}


def outcome(case, *how):
    try:
        case(*how)
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        torch.cuda.synchronize()
    return []


if __name__ == "__main__":
    dist.init_process_group("nccl")
    answer = {}
    for name, case in list(globals().items()):
        if getattr(case, "__module__", "") != __name__ or name in ("wait", "on", "ones", "outcome"):
            continue
        if name.startswith("_") or not hasattr(case, "__code__"):
            continue
        for how in VARIANTS.get(case, ("",)):
            for bad in (True, False):
                result = outcome(case, *filter(None, [how]))
                answer[f"{name} {how} {'wrong' if bad else 'right'}".replace("  ", " ")] = result
    Path(sys.argv[1]).write_text(json.dumps(answer))
    dist.destroy_process_group()
