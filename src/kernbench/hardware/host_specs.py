"""The host of an eager PyTorch program: how long its CPU takes for each part of its work."""

from __future__ import annotations

from fractions import Fraction

from kernbench.hardware.spec_base import Count, NotNegative, Positive, Share, Spec


class HostOperationSpec(Spec):
    """What PyTorch takes for one operation in C++: arguments, dispatch, shapes, result, launch.

    The elementwise operation was fitted with the Python call; the others are assumed shares of it.
    """

    view_us: NotNegative = Fraction("4.4")
    """A view: no memory and no kernel."""
    factory_us: NotNegative = Fraction("5.1")
    """A tensor of memory that stays as it is (``empty``)."""
    elementwise_us: NotNegative = Fraction("14.6")
    """An elementwise operation, a copy or an indexing, with a new result."""
    in_place_us: NotNegative = Fraction("13.9")
    """An operation that writes an operand of its."""
    reduction_us: NotNegative = Fraction("16.8")
    """A sum, a norm, a softmax, a scan."""
    product_us: NotNegative = Fraction("19.7")
    """A product or an attention: the library chooses its kernel."""
    planned_us: NotNegative = Fraction(44)
    """A convolution, a batch norm in training, a group norm.

    cuDNN gets descriptors, looks a plan up and takes workspace; a group norm is three kernels.
    Fitted with ``event_us`` to 315 eager programs of KernelBench on six hosts, whose device takes
    less than 45 % of their time, and to hf-compile-vision and accelerate-compile (15 rows), with a
    factor for each host: 10 % (MAPE). Apart, the three would be 46, 34 and 40.
    """
    foreach_us: NotNegative = Fraction("14.6")
    """An operation on lists of tensors (``_foreach_add``, a fused optimizer)."""
    foreach_tensor_us: NotNegative = Fraction("0.3")
    """What such an operation takes for each tensor of its first list."""
    recorded_us: NotNegative = Fraction("2.2")
    """The time added where autograd records an operation: its node, and what it saves."""


class HostSpec(Spec):
    """The CPU that runs a program's Python. Left out, each launch takes ``sip.host_launch_us``.

    The defaults are those of the hosts of A100s. Two numbers were fitted to launch-bound forwards
    of programs.csv: an elementwise operation to nine of them; a Python call, with that given, to
    the rows of accelerate-compile and, for batch 1 on A100 and V100, of hf-compile-vision that fits
    may see (20 rows, MAPE 10.8 %; three apart, all of ConvNeXT, 4.2 %). The others are assumed.
    """

    cpu: str
    """Its name; ``unknown`` where the source of the measurements does not say."""
    slowdown: Positive = Fraction(1)
    """How many times as long as the other keys say all of it takes: the number of a CPU."""
    python_call_us: NotNegative = Fraction("2.8")
    """A call of a Python function with its code, the bytecodes of one function on average."""
    python_calls_per_operation: Count = 4
    """Taken where calls are not counted: in a program that profiles itself, before Python 3.12."""
    operation: HostOperationSpec = HostOperationSpec()
    """Operations that a program calls; the parts of a composite one are operations each."""
    backward_share: Share = Fraction(1, 2)
    """Share of these times of operations that C++ calls without Python: those of a backward pass.
    """
    cast_us: NotNegative = Fraction("19.7")
    """A cast of autocast: an elementwise operation and its memory, each past the dispatcher.

    What batches of 1 take longer with autocast than without agrees, where hosts are all of their
    time: 19 us a cast of EfficientNet (nv-dle, B4 less B0) on DGX A100, 28 us on DGX-1.
    """
    backward_node_us: NotNegative = Fraction(4)
    """The time added to each operation of a backward pass but views: the engine runs a node."""
    event_us: NotNegative = Fraction("6.7")
    """Recording an event with a time stamp, which is created then (``planned_us``)."""
    collective_us: NotNegative = Fraction(30)
    """Issuing a collective below Python: its work object, events between streams, the launch."""
    read_us: NotNegative = Fraction(12)
    """A read that the host waits for (``item``), after the device has ended."""
    cuda_malloc_us: NotNegative = Fraction(300)
    """A segment of memory that the caching allocator gets from the driver."""
    message_us: NotNegative = Fraction(140)
    """Receiving an object from another process, as a loader does a batch from its worker.

    This and the next were measured with PyTorch 2.14 and ``DataLoader`` on a Xeon, in CPU time
    of the main process: 95 us for a batch, 115 us for each of its tensors; times 2.6 as for
    compiled graphs, less the calls of Python that are counted here (38 of a batch).
    """
    message_tensor_us: NotNegative = Fraction(300)
    """What that takes for each tensor: 94 calls of Python there, a socket, a mapping of memory."""
    tcp_us: NotNegative = Fraction("7.1")
    """A message by TCP on one host, one way: both system calls, and waking the receiver.

    Source for this and the next two: goldsborough/ipc-bench, README, messages of 100 bytes to and
    fro on a Core i5-4590S, taken for the host of an A100: 70,221 round trips a second by TCP,
    130,372 by Unix sockets, 24,901 by ZeroMQ over TCP, each way half of one. Between hosts
    ``links.scale_out.latency_ns`` is added.
    """
    unix_socket_us: NotNegative = Fraction("3.8")
    """The same by a Unix socket."""
    zmq_us: NotNegative = Fraction(13)
    """What ZeroMQ adds to each message by TCP or IPC: its I/O threads on both sides."""
    socket_gbps: Positive = Fraction(3)
    """Bandwidth of one connection, to which ``slowdown`` applies, too.

    Source: detailyang/ipc_benchmark, messages of 4 KB: 3,083 MB/s by TCP, 2,850 by Unix sockets.
    """
    triton_launch_us: NotNegative = Fraction(8)
    """The launcher of a Triton kernel below its Python."""
    triton_argument_us: NotNegative = Fraction("0.2")
    """What it takes for each argument."""
    compile_share: NotNegative = Fraction(0)
    """How much of the CPU time that compiling takes here passes for the program: none of it.

    With 1, it is what ``torch.compile`` takes on the machine that runs kernbench: two runs differ.
    """
    compiled_call_us: NotNegative = Fraction(16)
    """Entering a graph of ``torch.compile``: what Dynamo and AOTAutograd wrap around it.

    Source: meta-pytorch/tritonbench, pull requests 1016 and 1017, which time an empty kernel at
    each layer: 6.5 us for its launch by Inductor, 12 us for the graph, 33 us for the call of what
    was compiled, of which the program's own function and some 15 guards are 5 us here.
    """
    compiled_guard_us: NotNegative = Fraction("0.11")
    """What that takes for each guard.

    This and what follows, but for launches, was measured with PyTorch 2.13 and empty graphs on a
    CPU that takes 8.0 us for an entry (a guard takes 0.044 us), times 2.6, as it is 21 us above.
    """
    compiled_record_us: NotNegative = Fraction(23)
    """The time added where autograd records a graph: its node."""
    compiled_recorded_us: NotNegative = Fraction("0.87")
    """What that takes for each input of the graph."""
    compiled_node_us: NotNegative = Fraction(50)
    """The backward node of a graph."""
    compiled_output_us: NotNegative = Fraction(3)
    """A result of a graph, forward or backward, and what the forward one saves."""
    compiled_wrapper_us: NotNegative = Fraction("0.5")
    """The code that Inductor writes for a graph, without its tensors, launches and results."""
    compiled_empty_us: NotNegative = Fraction(2)
    """A tensor of memory, or a view, in that code, which goes past the dispatcher."""
    compiled_launch_us: NotNegative = Fraction("6.5")
    """A launch in that code: Inductor's static launcher, with its Python."""
    compiled_argument_us: NotNegative = Fraction("0.12")
    """What that takes for each argument: 6.8 us without, 9.1 us with 19 (pull request 1016)."""
    compiled_replay_us: NotNegative = Fraction(54)
    """Added where a compiled graph is replayed as a captured one: the Python of CUDA graph trees.

    It checks where inputs are, and makes new tensors for results. Source: KernelBench, PyTorch 2.5,
    programs of one kernel by ``reduce-overhead`` and ``cudagraphs`` on four hosts (28 rows): 24 to
    63 us by host, each in proportion to its eager programs; the median.
    """
    graph_replay_us: NotNegative = Fraction(10)
    """Launching a captured graph."""
    graph_node_us: NotNegative = Fraction("0.2")
    """What that takes for each kernel of the graph."""


class StorageSpec(Spec):
    """Storage that all nodes share, for checkpoints."""

    node_gbps: Positive
    """What one node writes to it or reads from it at most."""
    filesystem_gbps: Positive
    """What all nodes together do."""
    latency_ms: NotNegative = Fraction(0)
    """The time until a file is open, and closed again."""
