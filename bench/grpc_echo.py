"""A gRPC service with streams that return each message, and its client. Needs grpcio.

    grpc_echo.py serve PORT
    grpc_echo.py load PORT STREAMS SECONDS   # one message at a time on each stream; prints how many, and their latency
"""

import asyncio
import json
import sys
import time

import grpc

METHOD = "/bench.Echo/Stream"
MESSAGE = b"x" * 100
STREAMS_PER_CONNECTION = 8


async def echo(messages, _):
    async for message in messages:
        yield message


async def serve(port):
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bench.Echo", {"Stream": handler})])
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


async def exchange(channel, end, taken):
    """Sends messages on one stream until the end, and notes the microseconds until each is returned."""
    stream = channel.stream_stream(METHOD)()
    while (sent := time.monotonic()) < end:
        await stream.write(MESSAGE)
        if await stream.read() != MESSAGE:
            sys.exit("returns another message")
        taken.append((time.monotonic() - sent) * 1e6)
    await stream.done_writing()
    if await stream.read() is not grpc.aio.EOF or await stream.code() is not grpc.StatusCode.OK:
        sys.exit("the stream doesn't end well")


async def load(port, streams, seconds):
    # Without a pool of their own, channels to one address share a connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    taken, end = [], time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        for _ in range(streams // STREAMS_PER_CONNECTION):
            channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options)
            for _ in range(STREAMS_PER_CONNECTION):
                tasks.create_task(exchange(channel, end, taken))
    taken.sort()
    middle, late = taken[len(taken) // 2], taken[len(taken) * 99 // 100]
    print(json.dumps({"requests": len(taken), "per_second": len(taken) / seconds, "p50_us": middle, "p99_us": late}))


if __name__ == "__main__":
    mode, *numbers = sys.argv[1:]
    asyncio.run((serve if mode == "serve" else load)(*map(int, numbers)))
