"""Sockets of ZeroMQ in one program: what each case finds, as JSON, the same real and simulated."""

import asyncio
import json
import multiprocessing
import pickle
import select
import sys
import tempfile
import threading
import time
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def failure(function, *args):
    try:
        function(*args)
    except zmq.ZMQError as error:
        return f"{type(error).__name__} {error.errno}: {error}"
    return "none"


def bound(context, kind, address="tcp://127.0.0.1:*"):
    socket = context.socket(kind)
    socket.bind(address)
    return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT)


def connected(context, kind, address, **options):
    socket = context.socket(kind)
    socket.rcvtimeo = 20_000
    for name, value in options.items():
        setattr(socket, name, value)
    socket.connect(address)
    return socket


def addresses():
    folder = tempfile.mkdtemp()
    return "tcp://127.0.0.1:*", f"ipc://{folder}/socket", "inproc://here", "ipc://@abstract-kb"


def pairs():
    result = []
    for address in addresses():
        with zmq.Context() as context:
            left, where = bound(context, zmq.PAIR, address)

            def answer(context=context, where=where):
                with connected(context, zmq.PAIR, where) as right:
                    right.send_multipart([right.recv(), b"", b"ok"])

            thread = in_thread(answer)
            left.send(b"64")
            result.append([item.decode() for item in left.recv_multipart()])
            thread.join()
            left.close()
    return result


def requests():
    with zmq.Context() as context:
        server, where = bound(context, zmq.REP)
        client = connected(context, zmq.REQ, where)
        states = failure(client.recv), failure(server.send, b"")

        def serve():
            for _ in range(2):
                request = server.recv_pyobj()
                server.send_json({"sum": sum(request)})

        thread = in_thread(serve)
        client.send_pyobj([1, 2, 3])
        twice = failure(client.send, b"")
        answers = [client.recv_json()]
        client.send(pickle.dumps(range(5)))
        answers.append(client.recv_json())
        thread.join()
        client.close()
        server.close()
    return states, twice, answers


def routers():
    with zmq.Context() as context:
        router, where = bound(context, zmq.ROUTER)
        router.router_mandatory = 1
        clients = [connected(context, zmq.DEALER, where, identity=name) for name in (b"a", b"b")]
        for client in clients:
            client.send_multipart([b"hello", client.identity])
        met = sorted(router.recv_multipart() for _ in clients)
        unknown = failure(router.send_multipart, [b"nobody", b""])
        for name in (b"b", b"a"):
            router.send_multipart([name, b"to " + name])
        texts = [client.recv().decode() for client in clients]
        frame = zmq.Frame(b"of a frame")
        clients[0].send(frame, copy=False)
        parts = router.recv_multipart(copy=False)
        texts += [bytes(parts[1]).decode(), memoryview(parts[1].buffer).nbytes, parts[0].more]
        buffer = bytearray(10)
        clients[1].send(memoryview(b"into"))
        router.recv()
        texts += [router.recv_into(buffer), buffer[:5].decode()]
        for item in (router, *clients):
            item.close()
    return [[part.decode() for part in entry] for entry in met], unknown, texts


def pipelines():
    with zmq.Context() as context:
        source, where = bound(context, zmq.PUSH)
        sinks = [connected(context, zmq.PULL, where) for _ in range(2)]
        time.sleep(0.2)
        for number in range(6):
            source.send(b"%d" % number)
        shares = [[int(sink.recv()) for _ in range(3)] for sink in sinks]
        refused = failure(sinks[0].send, b""), failure(source.recv)
        for item in (source, *sinks):
            item.close()
    return sorted(shares), refused


def subscribers():
    with zmq.Context() as context:
        source, where = bound(context, zmq.XPUB)
        subscribed = connected(context, zmq.SUB, where)
        subscribed.subscribe(b"a")
        every = connected(context, zmq.SUB, where)
        every.subscribe("")
        topics = sorted(source.recv() for _ in range(2))
        for topic in (b"a1", b"b1", b"a2"):
            source.send_multipart([topic, b"body"])
        texts = [[subscribed.recv_multipart()[0].decode() for _ in range(2)]]
        texts.append([every.recv_multipart()[0].decode() for _ in range(3)])
        subscribed.unsubscribe(b"a")
        topics.append(source.recv())
        source.send(b"a3")
        texts.append([every.recv().decode(), failure(subscribed.recv, zmq.NOBLOCK)])
        for item in (source, subscribed, every):
            item.close(linger=0)
    return [topic.decode() for topic in topics], texts


def full_queues():
    with zmq.Context() as context:
        source = context.socket(zmq.PUSH)
        source.sndhwm = 3
        source.connect("inproc://nobody-yet")
        sent = 0
        while failure(source.send, b"x", zmq.NOBLOCK) == "none":
            sent += 1
        source.sndtimeo = 50
        began = time.monotonic()
        late = failure(source.send, b"x")
        waited = time.monotonic() - began >= 0.04
        sink, _ = bound(context, zmq.PULL, "inproc://nobody-yet")
        texts = [sink.recv().decode() for _ in range(sent)]
        sink.rcvtimeo = 50
        texts.append(failure(sink.recv))
        source.close()
        sink.close()
    return sent, late, waited, texts


def mistakes():
    with zmq.Context() as context:
        first, where = bound(context, zmq.PULL)

        def refused(method, address):
            with context.socket(zmq.PULL) as socket:
                return failure(getattr(socket, method), address)

        texts = [refused("bind", where).replace(where, "where it is")]
        texts.append(refused("bind", "tcp://192.0.2.1:5555"))
        texts.append(refused("bind", "nothing://x").partition(":")[0])
        texts.append(refused("connect", "tcp://127.0.0.1"))
        texts.append(failure(first.unbind, "tcp://127.0.0.1:1").partition(":")[0])
        with context.socket(zmq.PUSH) as source:
            texts += [source.bind_to_random_port("tcp://127.0.0.1") > 0]
            text: Any = "text"
            try:
                source.send(text)
            except TypeError as error:
                texts.append(str(error))
        texts += [first.closed, first.type == zmq.PULL, first.rcvhwm, first.linger]
        first.close()
        texts += [failure(first.recv), first.closed]
        context.destroy(linger=0)
    return texts


def pollers():
    with zmq.Context() as context:
        source, where = bound(context, zmq.PUSH)
        other, where_other = bound(context, zmq.PUSH, "inproc://other")
        sinks = connected(context, zmq.PULL, where), connected(context, zmq.PULL, where_other)
        poller = zmq.Poller()
        for sink in sinks:
            poller.register(sink, zmq.POLLIN)
        result = [len(poller.poll(20)), source.poll(1000, zmq.POLLOUT)]

        def send_later():
            time.sleep(0.05)
            source.send(b"x")

        thread = in_thread(send_later)
        result += [[sinks.index(item), events] for item, events in poller.poll()]
        thread.join()
        other.send(b"y")
        result.append(sorted(sinks.index(item) for item, _ in poller.poll()))
        result.append([sink.recv().decode() for sink in sinks])
        for item in (source, other, *sinks):
            item.close()
    return result


def of_asyncio():
    async def main():
        context = zmq.asyncio.Context()
        router = context.socket(zmq.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        client = context.socket(zmq.DEALER)
        client.connect(router.getsockopt_string(zmq.LAST_ENDPOINT))

        async def serve():
            while (message := await router.recv_multipart())[1] != b"stop":
                await router.send_multipart([message[0], message[1][::-1]])

        task = asyncio.create_task(serve())
        result: list[Any] = []
        for word in (b"abc", b"", b"defg"):
            await client.send(word)
            result.append((await client.recv()).decode())
        try:
            await asyncio.wait_for(client.recv(), 0.05)
        except TimeoutError:
            result.append("timeout")
        poller = zmq.asyncio.Poller()
        poller.register(client, zmq.POLLIN)
        await client.send(b"xy")
        result += [events for _, events in await poller.poll(10_000)]
        await client.send(b"stop")
        await task
        context.destroy(linger=0)
        return result

    return asyncio.run(main())


def a_context_that_ends():
    context = zmq.Context()
    sink, _ = bound(context, zmq.PULL)
    a_context = []

    def wait():
        a_context.append(failure(sink.recv))
        sink.close()

    thread = in_thread(wait)
    time.sleep(0.05)
    context.term()
    thread.join()
    return a_context


def servers_that_come_late():
    with zmq.Context() as context:
        first, where = bound(context, zmq.PULL)
        source = connected(context, zmq.PUSH, where)
        source.send(b"to the first")
        servers = [first.recv().decode()]
        first.close()
        time.sleep(0.3)
        second, _ = bound(context, zmq.PULL, where)
        source.send(b"to the second")
        servers.append(second.recv().decode())
        source.close()
        second.close()
    return servers


def last_messages():
    with zmq.Context() as context:
        source, where = bound(context, zmq.XPUB)
        reader = context.socket(zmq.SUB)
        reader.rcvtimeo = 20_000
        reader.conflate = 1
        reader.subscribe(b"")
        reader.connect(where)
        source.recv()
        for number in range(500):
            source.send(b"%d" % number)
        time.sleep(0.3)
        messages = [reader.recv().decode(), failure(reader.recv, zmq.NOBLOCK)]
        source.send(b"more")
        messages += [reader.recv().decode(), reader.conflate]
        for item in (source, reader):
            item.close()
    return messages


def ends_of_pipes():
    """Ends of pipes, and processes, among the files that are waited for."""
    context = multiprocessing.get_context("fork")
    result = []
    for duplex in (False, True):
        reader, writer = context.Pipe(duplex)
        files: list[Any] = [reader.fileno() == reader.fileno(), reader.fileno() != writer.fileno()]
        process = context.Process(target=time.sleep, args=(0.3,))
        process.start()
        with zmq.Context() as zmq_context:
            left, where = bound(zmq_context, zmq.PAIR)
            poller = zmq.Poller()
            for item in (left, reader, process.sentinel):
                poller.register(item, zmq.POLLIN)
            names = {left: "socket", reader.fileno(): "pipe", process.sentinel: "process"}
            seen: list[Any] = [poller.poll(0)]
            writer.send("by pipe")
            seen += [
                poller.poll(),
                select.select([reader], [writer], [], 0)[:2] == ([reader], [writer]),
            ]
            seen.append(wait([reader, process.sentinel], 5) == [reader])
            files += [reader.recv(), select.select([reader], [], [], 0)[0]]
            thread = in_thread(send_pair, zmq_context, where)
            seen.append(poller.poll())
            left.recv()
            thread.join()
            seen.append(poller.poll())
            left.close()
        process.join()
        result.append([files, seen[0], *map(str, seen[2:4])])
        result.append([[(names[file], events) for file, events in seen[at]] for at in (1, 4, 5)])
        writer.close()
        poll = select.poll()
        poll.register(reader, select.POLLIN)
        result.append([poll.poll(0) == [(reader.fileno(), poll_of_ended(duplex))], reader.poll()])
        reader.close()
    return [*result, asyncio.run(read_by_a_loop())]


def poll_of_ended(duplex):
    return select.POLLHUP | (select.POLLIN if duplex else 0)


def send_pair(context, where):
    with connected(context, zmq.PAIR, where) as right:
        right.send(b"by socket")


async def read_by_a_loop():
    reader, writer = multiprocessing.Pipe(False)
    loop = asyncio.get_running_loop()
    words: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(reader.fileno(), lambda: words.put_nowait(reader.recv()))
    timer = threading.Timer(0.1, writer.send, ["by loop"])
    timer.start()
    word = await asyncio.wait_for(words.get(), 20)
    loop.remove_reader(reader.fileno())
    timer.join()
    return word


CASES = (
    pairs, requests, routers, pipelines, subscribers, full_queues, mistakes, pollers, of_asyncio,
    a_context_that_ends, servers_that_come_late, last_messages, ends_of_pipes,
)  # fmt: skip

if __name__ == "__main__":
    chosen = [item for item in CASES if sys.argv[2:] in ([], [item.__name__])]
    results = {item.__name__: item() for item in chosen}
    Path(sys.argv[1]).write_text(json.dumps(results))
