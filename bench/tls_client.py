"""A client of new TLS 1.3 connections. It checks that each is a full handshake, or that each is resumed.

    tls_client.py full PORT SECONDS       # connections with one request each; prints how many, and how long they took
    tls_client.py resumed PORT SECONDS    # the same, each with the ticket of the thread's first connection
    tls_client.py idle PORT CONNECTIONS   # holds connections that have had one request each
"""

import json
import socket
import ssl
import sys
import threading
import time

THREADS = 8
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect(context, port, session, resumed):
    """Returns a connection after its handshake and one request."""
    clear = socket.create_connection(("127.0.0.1", port), 30)
    connection = context.wrap_socket(clear, server_hostname="localhost", session=session)
    connection.sendall(REQUEST)
    received = connection.recv(4096)
    while b'"}' not in received:
        part = connection.recv(4096)
        if not part:
            break
        received += part
    if not received.startswith(b"HTTP/1.1 200") or b'"}' not in received:
        sys.exit(f"answers {received[:100]}")
    if connection.version() != "TLSv1.3" or connection.session_reused != resumed:
        sys.exit(f"{connection.version()}, session reused: {connection.session_reused}")
    return connection


def measure(context, port, resumed, end, taken):
    """Opens connections one after the other until the end, and notes their microseconds."""
    session = None
    if resumed:
        with connect(context, port, None, resumed=False) as first:
            session = first.session
    while (begun := time.monotonic()) < end:
        with connect(context, port, session, resumed):
            taken.append((time.monotonic() - begun) * 1e6)


def in_threads(work):
    """Runs the work in each thread. Ends the program if one fails."""
    failures = []

    def guarded(number):
        try:
            work(number)
        except (SystemExit, OSError) as failure:
            failures.append(str(failure))

    threads = [threading.Thread(target=guarded, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        print(failures[0])
        sys.exit(1)


def main():
    mode, port, amount = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    context = ssl._create_unverified_context()
    if mode == "idle":
        held = []
        in_threads(lambda _: held.extend(connect(context, port, None, False) for _ in range(amount // THREADS)))
        print("open", flush=True)
        return time.sleep(600)
    taken, end = [], time.monotonic() + amount
    in_threads(lambda _: measure(context, port, mode == "resumed", end, taken))
    taken.sort()
    middle, late = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    print(json.dumps({"requests": len(taken), "per_second": len(taken) / amount, "p50_us": middle, "p99_us": late}))


if __name__ == "__main__":
    main()
