"""Times of messages between ranks and in one program, in ns, as JSON in a file per rank."""

import json
import multiprocessing
import os
import socket
import sys
import threading
import time
from pathlib import Path

import zmq

SIZES = 1, 1000, 60_000


def echo(ends):
    while data := ends.recv(1 << 17):
        ends.sendall(data)


def there_and_back(send, recv):
    began = time.perf_counter_ns()
    send()
    recv()
    return time.perf_counter_ns() - began


def of_streams(ends):
    def recv():
        ends.recv(1 << 17)

    return [there_and_back(lambda n=n: ends.sendall(bytes(n)), recv) for n in SIZES]


def tcp():
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: echo(server.accept()[0]))
        thread.start()
        began = time.perf_counter_ns()
        client = socket.create_connection(server.getsockname())
        connected = time.perf_counter_ns() - began
        with client:
            streams = of_streams(client)
        thread.join()
    return [connected, *streams]


def unix():
    one, other = socket.socketpair()
    thread = threading.Thread(target=echo, args=(other,))
    thread.start()
    with one:
        streams = of_streams(one)
    thread.join()
    return streams


def answer(address, count):
    with zmq.Context() as context, context.socket(zmq.REP) as server:
        server.connect(address)
        for _ in range(count):
            server.send(server.recv())


def of_zmq(address):
    with zmq.Context() as context, context.socket(zmq.REQ) as client:
        client.bind(address)
        process = multiprocessing.get_context("fork").Process
        target = process(target=answer, args=(client.last_endpoint, 4))
        target.start()
        client.send(b"hello")
        client.recv()
        sizes = [there_and_back(lambda n=n: client.send(bytes(n)), client.recv) for n in SIZES]
        target.join()
    return sizes


def between_ranks(rank):
    if rank == 0:
        with socket.create_server((socket.gethostname(), 5000)) as server:
            ends, address = server.accept()
            with ends:
                echo(ends)
        return address[0]
    time.sleep(0.01)
    with socket.create_connection(("node0", 5000)) as client:
        return of_streams(client)


if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    if os.environ["WORLD_SIZE"] == "2":
        results = between_ranks(rank)
    else:
        results = {"tcp": tcp(), "unix": unix(), "zmq": of_zmq("tcp://127.0.0.1:5555")}
        results["ipc"] = of_zmq(f"ipc://{sys.argv[1]}.socket")
    Path(f"{sys.argv[1]}{rank}.json").write_text(json.dumps(results))
