"""Speaks WebSocket with a server that sends back what it gets, at the url that is given; with TLS, by an authority.

It runs in one thread, for the reason that websocket_server.py gives.
"""

import asyncio
import ssl
import sys

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

url = sys.argv[1]
context = ssl.create_default_context(cafile=sys.argv[2]) if len(sys.argv) > 2 else None
# In seconds. Longer than a busy machine needs.
MOST = 300


def open_at(path):
    return connect(url + path, subprotocols=["chat"], ssl=context, open_timeout=MOST, close_timeout=MOST, ping_interval=None)


async def talk():
    async with open_at("") as connection:
        assert connection.subprotocol == "chat", connection.subprotocol
        extensions = connection.response.headers["Sec-WebSocket-Extensions"]
        assert "permessage-deflate" in extensions, extensions
        for number in range(200):
            await connection.send(f"message {number}")
            assert await connection.recv() == f"message {number}"
        large = bytes(range(256)) * 2048
        await connection.send(large)
        assert await connection.recv() == large
        # In fragments, as they are made.
        await connection.send(f"part {number} " for number in range(100))
        assert await connection.recv() == "".join(f"part {number} " for number in range(100))
        await (await connection.ping())
    assert connection.close_code == 1000, connection.close_code


async def main():
    await asyncio.gather(*(talk() for _ in range(8)))

    async with open_at("/closing") as connection:
        try:
            await connection.recv()
            raise AssertionError("the server has closed it")
        except ConnectionClosed as closed:
            assert (closed.rcvd.code, closed.rcvd.reason) == (4001, "closed by the server"), closed

    try:
        async with open_at("/limited"):
            raise AssertionError("the limit refuses it")
    except InvalidStatus as refused:
        response = refused.response
        assert response.status_code == 429, response
        assert int(response.headers["Retry-After-Ms"]) > 0, response.headers


asyncio.run(asyncio.wait_for(main(), MOST))
