"""A server, a second one at its port, a client that leaves, and a worker that dies."""

import errno
import http.server
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import threading
import time

SPAWN = multiprocessing.get_context("spawn")
ADDRESS = "127.0.0.1", 8000


def serve(pipe):
    class Slow(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            try:
                for _ in range(5):
                    self.wfile.write(b"x" * 1000)
                    time.sleep(0.1)
            except ConnectionError:
                pipe.send("its client has left")

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(ADDRESS, Slow)
    # To shut it down takes another thread: the main one, which the signal finds, serves.
    signal.signal(signal.SIGINT, lambda *_: threading.Thread(target=server.shutdown).start())
    pipe.send("up")
    server.serve_forever()
    server.server_close()
    pipe.send("down")


def serve_there_too(pipe):
    try:
        http.server.HTTPServer(ADDRESS, http.server.BaseHTTPRequestHandler)
    except OSError as error:
        pipe.send(error.errno == errno.EADDRINUSE)


def work(pipe):
    pipe.recv()
    time.sleep(100)


def main():
    mine, its = SPAWN.Pipe()
    server = SPAWN.Process(target=serve, args=(its,))
    server.start()
    print(mine.recv())
    second = SPAWN.Process(target=serve_there_too, args=(its,))
    second.start()
    print(mine.recv())
    second.join()
    client = socket.create_connection(ADDRESS)
    client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    client.recv(10)
    client.close()
    print(mine.recv())
    pipe, end = SPAWN.Pipe()
    worker = SPAWN.Process(target=work, args=(end,))
    worker.start()
    end.close()
    pipe.send("begin")
    assert worker.pid is not None
    threading.Timer(0.5, os.kill, (worker.pid, signal.SIGKILL)).start()
    multiprocessing.connection.wait([worker.sentinel])
    worker.join()
    print(worker.exitcode)
    assert server.pid is not None
    os.kill(server.pid, signal.SIGINT)
    print(mine.recv())
    server.join()
    print(server.exitcode)
    try:
        socket.create_connection(ADDRESS)
    except ConnectionRefusedError:
        print("refused")


if __name__ == "__main__":
    main()
