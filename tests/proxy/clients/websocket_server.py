"""A server of WebSocket that sends back what it gets, on a port that it prints."""

from websockets.sync.server import serve


def mirror(connection):
    if connection.request.path == "/closing":
        connection.close(4001, "closed by the server")
        return
    for message in connection:
        connection.send(message)


with serve(mirror, "127.0.0.1", 0, subprotocols=["chat"]) as server:
    print(server.socket.getsockname()[1], flush=True)
    server.serve_forever()
