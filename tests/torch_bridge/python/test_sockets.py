"""Sockets between processes and threads of a run: as in plain Python, in simulated time."""

from __future__ import annotations

import gc
import json
import socket
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("zmq")

from kernbench.clock import Simulation
from kernbench.errors import DeadlockError
from kernbench.hardware import HostSpec, load_machine
from kernbench.runtime_api.front.multiprocessing import SpawnException
from kernbench.torch_bridge.python.sockets.channels import Channel, Wire
from tests.torch_bridge.running import PROGRAMS, simulated

HOST = HostSpec(cpu="unknown")
READING_NS = 100
"""What a clock takes to be read."""
SIZES = 1, 1000, 60_000


def there_and_back_ns(latency_us: Any, more_ns: float = 0) -> list[float]:
    """Return what messages of each size take to another process and back, by hand."""
    one_way = [float(latency_us) * 1e3 + more_ns + size / float(HOST.socket_gbps) for size in SIZES]
    return [2 * item + READING_NS for item in one_way]


def program(folder: Path, text: str) -> Path:
    path = folder / "program.py"
    path.write_text(text)
    return path


@pytest.mark.adr("0259-D1")
@pytest.mark.adr("0283-D1")
@pytest.mark.parametrize("name", ["sockets.py", "zmq_sockets.py"])
def test_programs_find_what_they_find_in_plain_python(tmp_path: Path, name: str) -> None:
    real, result = tmp_path / "real.json", tmp_path / "found.json"
    command = [sys.executable, "-W", "ignore", str(PROGRAMS / name), str(real)]
    with subprocess.Popen(command) as process:
        simulated(name, result)
        assert process.wait(60) == 0
    expected = json.loads(real.read_text())
    assert len(expected) > 10
    for case, values in json.loads(result.read_text()).items():
        assert values == expected[case], case


@pytest.mark.adr("0259-D2")
def test_messages_take_their_latency_and_their_bytes(tmp_path: Path) -> None:
    simulated("sockets_timed.py", tmp_path / "rank")
    data = json.loads((tmp_path / "rank0.json").read_text())
    connecting, *by_tcp = data["tcp"]
    assert connecting == pytest.approx(2 * float(HOST.tcp_us) * 1e3 + READING_NS, abs=1)
    assert by_tcp == pytest.approx(there_and_back_ns(HOST.tcp_us), abs=2)
    assert data["unix"] == pytest.approx(there_and_back_ns(HOST.unix_socket_us), abs=2)
    assert data["zmq"] == pytest.approx(there_and_back_ns(HOST.tcp_us + HOST.zmq_us), abs=2)
    assert data["ipc"] == pytest.approx(there_and_back_ns(HOST.unix_socket_us + HOST.zmq_us), abs=2)


@pytest.mark.adr("0259-D2")
def test_messages_to_another_node_take_the_networks_latency_too(tmp_path: Path) -> None:
    simulated("sockets_timed.py", tmp_path / "rank", machine="a100-sxm-80g:2x1", num_nodes=2)
    links = load_machine("a100-sxm-80g:2x1").spec.links
    assert links is not None
    assert links.scale_out is not None
    data = json.loads((tmp_path / "rank1.json").read_text())
    expected = there_and_back_ns(HOST.tcp_us, float(links.scale_out.latency_ns))
    assert json.loads((tmp_path / "rank0.json").read_text()) == "10.0.0.2"
    # Hosts of this machine take time for Python, too, the same for all sizes.
    python = [has - takes for has, takes in zip(data, expected, strict=True)]
    assert python == pytest.approx([python[0]] * 3, abs=2)
    assert 0 <= python[0] < 50_000


@pytest.mark.adr("0259-D2")
def test_times_of_servers_are_the_same_in_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """
import asyncio, sys, time
async def serve(reader, writer):
    while await reader.readline():
        await asyncio.sleep(0.001)
        writer.write(b"ok\\n")
    writer.close()
async def ask(where):
    reader, writer = await asyncio.open_connection(*where)
    for word in {"a", "b", "c"}:
        writer.write(word.encode() + b"\\n")
        await reader.readline()
    times.append(time.perf_counter_ns())
    writer.close()
async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await asyncio.gather(*(ask(server.sockets[0].getsockname()) for _ in range(8)))
times = []
asyncio.run(main())
print(times)
"""
    path = program(tmp_path, text)
    command = [sys.executable, "-m", "kernbench", "torchrun", "--machine", "ahbm", str(path)]
    with subprocess.Popen(command, env={"PYTHONHASHSEED": "1"}, stdout=subprocess.PIPE) as other:
        simulated(path)
        assert other.stdout is not None
        times = other.stdout.readline().decode()
        other.stdout.read()
    assert len(json.loads(times)) == 8
    assert capsys.readouterr().out == times


@pytest.mark.adr("0259-D3")
@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "import socket, threading\na, b = socket.socketpair()\n"
            "threading.Thread(target=lambda: b.recv(1)).start()\na.recv(1)\n",
            [r"recv of a socket of socketpair\(\)", r"program.py:3, in a thread"],
        ),
        (
            "import socket\ns = socket.create_server(('127.0.0.1', 7000))\ns.accept()\n",
            ["accept of a socket that listens at 127.0.0.1:7000"],
        ),
        (
            "import zmq\ns = zmq.Context().socket(zmq.PULL)\ns.bind('tcp://127.0.0.1:7000')\n"
            "s.recv()\n",
            ["recv of a ZeroMQ PULL socket of tcp://127.0.0.1:7000"],
        ),
        (
            "import zmq\nc = zmq.Context()\ns = c.socket(zmq.PUSH)\nc.term()\n",
            ["term of a context of ZeroMQ whose sockets are open: a ZeroMQ PUSH socket"],
        ),
        (
            "import asyncio\nasync def main():\n"
            "    server = await asyncio.start_server(print, '127.0.0.1', 7000)\n"
            "    await server.serve_forever()\nasyncio.run(main())\n",
            ["wakes an event loop of asyncio: a socket that listens at 127.0.0.1:7000"],
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("collects_own")
def test_who_waits_for_a_socket_for_ever_is_named(
    tmp_path: Path, text: str, names: list[str]
) -> None:
    with pytest.raises((DeadlockError, SpawnException)) as raises:
        simulated(program(tmp_path, text))
    for name in names:
        raises.match(name)
    # Contexts of ZeroMQ that nobody closed say so when they go: now, and not in another test.
    del raises
    with warnings.catch_warnings(action="ignore"):
        gc.collect()


@pytest.mark.adr("0259-D4")
def test_what_is_outside_of_the_run_is_reached_and_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                ends, _ = server.accept()
                with ends:
                    ends.sendall(ends.recv(100).upper())

        thread = threading.Thread(target=serve)
        thread.start()
        text = f"""
import asyncio, socket
with socket.create_connection(("127.0.0.1", {port})) as client:
    client.sendall(b"real")
    assert client.recv(100) == b"REAL"
async def main():
    reader, writer = await asyncio.open_connection("127.0.0.1", {port})
    writer.write(b"too")
    assert await reader.read() == b"TOO"
    writer.close()
    await writer.wait_closed()
asyncio.run(main())
"""
        context = simulated(program(tmp_path, text))
        thread.join()
    said = [line for ask in context.run.remarks for line in ask() if "outside of the run" in line]
    assert len(said) == 1
    assert f"127.0.0.1:{port}" in said[0]


def test_processes_close_their_sockets_and_pass_them_on(tmp_path: Path) -> None:
    text = """
import multiprocessing, socket, time
def answer(server):
    ends, _ = server.accept()
    ends.sendall(b"from the child")
    time.sleep(100)
def main(kills):
    process = multiprocessing.get_context("fork").Process
    with socket.create_server(("127.0.0.1", 7000)) as server:
        child = process(target=answer, args=(server,))
        child.start()
        client = socket.create_connection(server.getsockname())
        assert client.recv(100) == b"from the child"
        if kills:
            child.kill()
        assert client.recv(100) == b""
        child.join()
        assert (child.exitcode != 0) == kills
if __name__ == "__main__":
    main(True)
    main(False)
"""
    simulated(program(tmp_path, text))


def test_loops_in_c_are_those_of_asyncio(tmp_path: Path) -> None:
    pytest.importorskip("uvloop")
    text = "import asyncio, uvloop\nuvloop.run(asyncio.sleep(1000))\n"
    context = simulated(program(tmp_path, text))
    assert context.run.simulation.now_ps >= 1000 * 10**12
    assert any("in place of uvloop" in line for ask in context.run.remarks for line in ask())


@given(sent=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 1 << 40)), max_size=20))
def test_a_channel_keeps_order_latency_and_bandwidth(sent: list[tuple[int, int]]) -> None:
    simulation, wire = Simulation(), Wire(HOST.tcp_us, HOST)
    channel = Channel(simulation, wire, float("inf"))
    arrived: list[tuple[int, int]] = []

    class Noted:
        def wake(self) -> None:
            arrived.append((channel.items[-1], simulation.now_ps))

    channel.watchers.append(Noted())
    at_ps = [sum(gap for _, gap in sent[: index + 1]) for index in range(len(sent))]
    for index, ((size, _), now_ps) in enumerate(zip(sent, at_ps, strict=True)):
        channel.send(index, size, size, now_ps)
    simulation.drain()
    assert [index for index, _ in arrived] == list(range(len(sent)))
    for index, when_ps in arrived:
        least_ps = max(
            at_ps[first]
            + sum(1000 * size for size, _ in sent[first : index + 1]) / HOST.socket_gbps
            for first in range(index + 1)
        )
        late_ps = when_ps - least_ps - HOST.tcp_us * 10**6
        # Each transfer is rounded up to whole picoseconds.
        assert 0 <= late_ps <= index + 1
