"""A server of WebSocket that sends back what it gets, on a port that it prints; with TLS, if it gets a certificate."""

import ssl
import sys

from websockets.sync.server import serve


def mirror(connection):
    if connection.request.path == "/closing":
        connection.close(4001, "closed by the server")
        return
    for message in connection:
        connection.send(message)


context = None
if len(sys.argv) > 1:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*sys.argv[1:])
with serve(mirror, "127.0.0.1", 0, subprotocols=["chat"], ssl=context) as server:
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
