"""A server of gRPC whose messages are any bytes, on a port that it prints."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc


def unary(request, context):
    metadata = dict(context.invocation_metadata())
    context.send_initial_metadata([("x-heard", metadata.get("x-said", ""))])
    context.set_trailing_metadata([("x-tokens-used", "40"), ("x-raw-bin", b"\x00\xff")])
    return request[::-1]


def server_stream(request, context):
    for number in range(int(request)):
        yield str(number).encode()


def client_stream(requests, context):
    return b",".join(requests)


def both_stream(requests, context):
    for request in requests:
        yield b"heard " + request


def fail(request, context):
    context.set_trailing_metadata([("x-why", "because")])
    context.abort(grpc.StatusCode.NOT_FOUND, "no such thing: 100 % of grün")


def time_left(request, context):
    return str(context.time_remaining()).encode()


def silent(request, context):
    """Yields once, and then waits until the client has left."""
    left = threading.Event()

    # Not behind the yield: a call that is cancelled while the message is sent isn't resumed there.
    def leave():
        departures.append(True)
        left.set()

    context.add_callback(leave)
    yield b"first"
    left.wait()


def never(request, context):
    left = threading.Event()
    context.add_callback(left.set)
    left.wait()
    return b""


def count_departures(request, context):
    return str(len(departures)).encode()


departures = []
methods = {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "ServerStream": grpc.unary_stream_rpc_method_handler(server_stream),
    "ClientStream": grpc.stream_unary_rpc_method_handler(client_stream),
    "BothStream": grpc.stream_stream_rpc_method_handler(both_stream),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "TimeLeft": grpc.unary_unary_rpc_method_handler(time_left),
    "Silent": grpc.unary_stream_rpc_method_handler(silent),
    "Never": grpc.unary_unary_rpc_method_handler(never),
    "CountDepartures": grpc.unary_unary_rpc_method_handler(count_departures),
}
server = grpc.server(ThreadPoolExecutor(16))
services = ["test.Bytes", "limited.Bytes", "late.Bytes"]
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, methods) for name in services])
port = server.add_insecure_port("127.0.0.1:0")
server.start()
print(port, flush=True)
server.wait_for_termination()
