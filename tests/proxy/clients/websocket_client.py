"""Speaks WebSocket with a server that sends back what it gets, at the url that is given; with TLS, by an authority."""

import ssl
import sys
import threading

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

url = sys.argv[1]
context = ssl.create_default_context(cafile=sys.argv[2]) if len(sys.argv) > 2 else None


def talk():
    with connect(url, subprotocols=["chat"], ssl=context) as connection:
        assert connection.subprotocol == "chat", connection.subprotocol
        extensions = connection.response.headers["Sec-WebSocket-Extensions"]
        assert "permessage-deflate" in extensions, extensions
        for number in range(200):
            connection.send(f"message {number}")
            assert connection.recv(timeout=10) == f"message {number}"
        large = bytes(range(256)) * 2048
        connection.send(large)
        assert connection.recv(timeout=10) == large
        # In fragments, as they are made.
        connection.send(f"part {number} " for number in range(100))
        assert connection.recv(timeout=10) == "".join(f"part {number} " for number in range(100))
        assert connection.ping().wait(10)
    assert connection.close_code == 1000, connection.close_code


def talk_and_note(talked):
    talk()
    talked.append(True)


talked = []
threads = [threading.Thread(target=talk_and_note, args=[talked]) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(talked) == len(threads)

with connect(url + "/closing", subprotocols=["chat"], ssl=context) as connection:
    try:
        connection.recv(timeout=10)
        raise AssertionError("the server has closed it")
    except ConnectionClosed as closed:
        assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "closed by the server"), closed

try:
    connect(url + "/limited", ssl=context)
    raise AssertionError("the limit refuses it")
except InvalidStatus as refused:
    response = refused.response
    assert response.status_code == 429, response
    assert int(response.headers["Retry-After-Ms"]) > 0, response.headers
