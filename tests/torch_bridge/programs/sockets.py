"""Sockets of one program: what each case finds, as JSON, the same in real Python and simulated."""

import asyncio
import errno
import http.server
import json
import select
import selectors
import socket
import socketserver
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    return thread


def name_of(error):
    return f"{type(error).__name__} {errno.errorcode.get(error.errno or 0)}"


def failure(function, *args):
    try:
        function(*args)
    except OSError as error:
        return name_of(error)
    except EOFError:
        return "the end"
    return "none"


def listening(family=socket.AF_INET, address=("127.0.0.1", 0)):
    server = socket.socket(family)
    server.bind(address)
    server.listen()
    return server


def connected():
    with listening() as server:
        client = socket.create_connection(server.getsockname())
        other, address = server.accept()
    assert address == client.getsockname()
    assert other.getsockname() == client.getpeername()
    return client, other


def echo(server):
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def tcp_echo():
    with listening() as server:
        thread = in_thread(echo, server)
        with socket.create_connection(server.getsockname()) as client:
            client.sendall(b"some bytes")
            client.shutdown(socket.SHUT_WR)
            with client.makefile("rb") as file:
                result = file.read()
        thread.join()
    return result.decode()


def large_transfer():
    data = bytes(range(256)) * 40_000
    with listening() as server:
        thread = in_thread(echo, server)
        with socket.create_connection(server.getsockname()) as client:
            sender = in_thread(client.sendall, data)
            recv = client.recv(len(data), socket.MSG_WAITALL)
            sender.join()
        thread.join()
    return recv == data


def unix_socket():
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        with listening(socket.AF_UNIX, path) as server:
            again = failure(listening, socket.AF_UNIX, path)
            thread = in_thread(echo, server)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(path)
                client.sendall(b"by a file")
                recvs = client.recv(4), client.recv(100, socket.MSG_PEEK), client.recv(100)
            thread.join()
        gone = failure(socket.socket(socket.AF_UNIX).connect, path)
        Path(path).unlink()
        missing = failure(socket.socket(socket.AF_UNIX).connect, path)
    return again, [item.decode() for item in recvs], gone, missing


def pairs():
    one, other = socket.socketpair()
    one.send(b"ab")
    one.send(b"cd")
    texts = [other.recv(3).decode(), other.recv(10).decode()]
    one.close()
    texts += [other.recv(10).decode(), failure(other.send, b"x")]
    a, b = socket.socketpair(type=socket.SOCK_DGRAM)
    a.send(b"one")
    a.send(b"two")
    return texts, b.recv(100).decode(), b.recv(100).decode()


def datagrams():
    with socket.socket(type=socket.SOCK_DGRAM) as one, socket.socket(type=socket.SOCK_DGRAM) as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        two.sendto(b"first", one.getsockname())
        two.connect(one.getsockname())
        two.send(b"second, cut")
        first, sender = one.recvfrom(100)
        return first.decode(), sender == two.getsockname(), one.recv(6).decode()


def mistakes():
    with listening() as server:
        address = server.getsockname()
        in_use = failure(listening, socket.AF_INET, address)
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            bound_only = failure(socket.create_connection, other.getsockname())
            twice = failure(other.bind, ("127.0.0.1", 0))
            unconnected = failure(other.recv, 1), failure(other.getpeername)
        accepting = failure(socket.socket().accept)
        family = failure(socket.socket(socket.AF_UNIX).listen)
    refused = failure(socket.create_connection, address)
    again = listening(address=address)
    again.close()
    with socket.socket() as closed:
        pass
    texts = []
    for call in (
        lambda: socket.socket().bind(("127.0.0.1", 1 << 20)),
        lambda: socket.socket().bind("127.0.0.1"),
        lambda: socket.socket().connect(("127.0.0.1", "80")),
        lambda: socket.socket().settimeout(-1),
        lambda: socket.socket().setsockopt(socket.SOL_SOCKET, 1 << 20, 1),
    ):
        try:
            call()
        except (TypeError, ValueError, OverflowError, OSError) as error:
            texts.append(type(error).__name__)
    not_here = failure(socket.socket().bind, ("192.0.2.1", 0))
    return (
        in_use, bound_only, twice, unconnected, accepting, family, refused, texts, not_here,
        failure(closed.send, b""), closed.fileno(),
    )  # fmt: skip


def peers_that_close():
    client, other = connected()
    other.close()
    peers = [client.recv(1).decode()]
    client.send(b"to nobody")
    import time

    time.sleep(0.05)
    peers.append(failure(client.send, b"again"))
    client, other = connected()
    client.send(b"unread")
    select.select([other], [], [])
    other.close()
    peers.append(failure(client.recv, 1))
    client, other = connected()
    other.send(b"last words")
    other.shutdown(socket.SHUT_WR)
    peers += [client.recv(100).decode(), client.recv(100).decode(), failure(other.send, b"")]
    client.send(b"still heard")
    peers.append(other.recv(100).decode())
    return peers


def timeouts():
    client, other = connected()
    client.settimeout(0.05)
    result = [failure(client.recv, 1), client.gettimeout()]
    client.setblocking(False)
    result += [failure(client.recv, 1), failure(client.recv, 1, socket.MSG_DONTWAIT)]
    with listening() as server:
        server.settimeout(0.05)
        result.append(failure(server.accept))
    count = 0
    try:
        while True:
            count += client.send(b"x" * 100_000)
    except BlockingIOError:
        result.append(count > 200_000)
    other.recv(1 << 20)
    return result


def without_blocking():
    with listening() as server, socket.socket() as client:
        client.setblocking(False)
        result = [failure(server.recv, 1), errno.errorcode[client.connect_ex(server.getsockname())]]
        select.select([], [client], [])
        result += [client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)]
        poll = select.poll()
        poll.register(server, select.POLLIN)
        result.append([event for _, event in poll.poll()])
        other, _ = server.accept()
        result.append(poll.poll(0))
        result.append([len(item) for item in select.select([other, client], [client], [other], 0)])
        other.send(b"x")
        result.append([len(item) for item in select.select([other, client], [client], [other])])
    with socket.socket() as client:
        client.setblocking(False)
        first = client.connect_ex(server_address_of_nobody())
        if first == errno.EINPROGRESS:
            select.select([], [client], [])
            first = client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        result.append(errno.errorcode[first])
    return result


def server_address_of_nobody():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()


def selector_of_several():
    result = []
    with selectors.DefaultSelector() as selector, listening() as server:
        selector.register(server, selectors.EVENT_READ, "server")

        def talk(word):
            with socket.create_connection(server.getsockname()) as client:
                client.sendall(word)
                result.append(client.recv(100).decode())

        threads = [in_thread(talk, word) for word in (b"one", b"two", b"three")]
        left = 3
        while left:
            for key, events in selector.select():
                assert events == selectors.EVENT_READ
                if key.data == "server":
                    accepted = server.accept()[0]
                    selector.register(accepted, selectors.EVENT_READ, accepted)
                elif data := key.data.recv(100):
                    key.data.sendall(data.upper())
                else:
                    selector.unregister(key.data)
                    key.data.close()
                    left -= 1
        for thread in threads:
            thread.join()
    return sorted(result)


class _Pages(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = f"page {self.path}".encode()
        self.send_response(200 if self.path == "/a" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))[::-1]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def web_server():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = in_thread(server.serve_forever)
        where = f"http://127.0.0.1:{server.server_address[1]}"
        texts = [urllib.request.urlopen(f"{where}/a").read().decode()]
        texts.append(urllib.request.urlopen(f"{where}/b", b"abc" * 100_000).read()[:4].decode())
        try:
            urllib.request.urlopen(f"{where}/c")
        except urllib.error.HTTPError as error:
            texts.append(error.code)
        server.shutdown()
        thread.join()
    try:
        urllib.request.urlopen(f"{where}/a")
    except urllib.error.URLError as error:
        texts.append(name_of(error.reason))
    return texts


class _Upper(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line.upper())


def socket_server():
    with socketserver.ThreadingTCPServer(("localhost", 0), _Upper) as server:
        thread = in_thread(server.serve_forever)
        with (
            socket.create_connection(server.socket.getsockname()) as client,
            client.makefile("rw") as file,
        ):
            file.write("one\ntwo\n")
            file.flush()
            readlines = file.readline(), file.readline()
        server.shutdown()
        thread.join()
    return readlines


async def _answers(path=None):
    async def serve(reader, writer):
        while line := await reader.readline():
            writer.write(line[::-1])
            await writer.drain()
        writer.close()

    async def ask(word):
        if path is None:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        else:
            reader, writer = await asyncio.open_unix_connection(path)
        writer.write(word + b"\n")
        writer.write_eof()
        result = await reader.read()
        writer.close()
        await writer.wait_closed()
        return result.decode()

    if path is None:
        server = await asyncio.start_server(serve, "localhost", 0)
    else:
        server = await asyncio.start_unix_server(serve, path)
    async with server:
        answer = await asyncio.gather(*(ask(word) for word in (b"abc", b"x" * 60_000, b"")))
    try:
        await asyncio.open_connection("127.0.0.1", server_address_of_nobody()[1])
    except OSError as error:
        answer.append(name_of(error))
    client, other = connected()
    reader, writer = await asyncio.open_connection(sock=client)
    try:
        await asyncio.wait_for(reader.read(), 0.05)
    except TimeoutError:
        answer.append("timeout")
    writer.close()
    await writer.wait_closed()
    other.close()
    return [item[:10] for item in answer]


def streams():
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_answers()), asyncio.run(_answers(f"{folder}/socket"))


def loop_of_sockets():
    async def main():
        loop = asyncio.get_running_loop()
        server = listening()
        server.setblocking(False)
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, server.getsockname())
        other, _ = await loop.sock_accept(server)
        await loop.sock_sendall(client, b"abc")
        sock_recv = await loop.sock_recv(other, 100)
        thread = asyncio.to_thread(client.getsockname)
        return sock_recv.decode(), await thread == client.getsockname()

    return asyncio.run(main())


def connections():
    result = []
    for address in (("localhost", 0), None):
        with Listener(address, authkey=b"key") as listener:

            def talk(key, listener=listener):
                try:
                    with Client(listener.address, authkey=key) as client:
                        client.send({"asks": list(range(10_000))})
                        result.append(client.recv())
                except AuthenticationError as error:
                    result.append(str(error))

            thread = in_thread(talk, b"key")
            with listener.accept() as other:
                assert wait([other], 10) == [other]
                other.send(sum(other.recv()["asks"]))
                thread.join()
                result.append([other.poll(), failure(other.recv)])
            thread = in_thread(talk, b"another")
            try:
                listener.accept()
            except AuthenticationError as error:
                result.append(str(error))
            thread.join()
    return sorted(map(str, result))


def only(name):
    return [item for item in CASES if name in (None, item.__name__)]


CASES = (
    tcp_echo, large_transfer, unix_socket, pairs, datagrams, mistakes, peers_that_close, timeouts,
    without_blocking, selector_of_several, web_server, socket_server, streams, loop_of_sockets,
    connections,
)  # fmt: skip

if __name__ == "__main__":
    results = {item.__name__: item() for item in only(sys.argv[2] if sys.argv[2:] else None)}
    Path(sys.argv[1]).write_text(json.dumps(results))
