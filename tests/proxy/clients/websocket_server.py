"""A server of WebSocket that sends back what it gets, on a port that it prints; with TLS, if it gets a certificate.

It runs in one thread: two threads that read and write one TLS connection hang now and then in Python before 3.13.
"""

import asyncio
import ssl
import sys

from websockets.asyncio.server import serve


async def mirror(connection):
    if connection.request.path == "/closing":
        await connection.close(4001, "closed by the server")
        return
    async for message in connection:
        await connection.send(message)


async def main():
    context = None
    if len(sys.argv) > 1:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*sys.argv[1:])
    async with serve(mirror, "127.0.0.1", 0, subprotocols=["chat"], ssl=context, ping_interval=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


asyncio.run(main())
