"""Calls each kind of method at the address that is given, through the gateway, and asserts what comes."""

import sys
import threading
import time

import grpc

channel = grpc.insecure_channel(sys.argv[1])


def unary(name):
    return channel.unary_unary(f"/test.Bytes/{name}")


def failure(call):
    try:
        call()
    except grpc.RpcError as error:
        return error
    raise AssertionError("it fails")


# Unary, with metadata both ways.
reply, call = unary("Unary").with_call(b"abc", metadata=[("x-said", "hello")], timeout=30)
assert reply == b"cba", reply
assert ("x-heard", "hello") in call.initial_metadata(), call.initial_metadata()
trailing = dict(call.trailing_metadata())
assert trailing["x-tokens-used"] == "40" and trailing["x-raw-bin"] == b"\x00\xff", trailing
large = b"x" * (3 << 20)
assert unary("Unary")(large, timeout=30) == large

# Streams.
replies = channel.unary_stream("/test.Bytes/ServerStream")(b"1000", timeout=30)
assert [int(reply) for reply in replies] == list(range(1000))
requests = [str(number).encode() for number in range(1000)]
reply = channel.stream_unary("/test.Bytes/ClientStream")(iter(requests), timeout=30)
assert reply == b",".join(requests), reply

# Each message goes on as it comes, both ways.
said, heard = threading.Semaphore(0), []


def turn_by_turn():
    for number in range(20):
        yield str(number).encode()
        assert said.acquire(timeout=10)


for reply in channel.stream_stream("/test.Bytes/BothStream")(turn_by_turn(), timeout=30):
    heard.append(reply)
    said.release()
assert heard == [b"heard %d" % number for number in range(20)], heard

# Many at a time.
calls = [unary("Unary").future(b"%d" % number, timeout=30) for number in range(200)]
assert [call.result() for call in calls] == [(b"%d" % number)[::-1] for number in range(200)]

# The server's own failures.
error = failure(lambda: unary("Fail")(b"", timeout=30))
assert error.code() == grpc.StatusCode.NOT_FOUND, error
assert error.details() == "no such thing: 100 % of grün", error.details()
assert ("x-why", "because") in error.trailing_metadata(), error.trailing_metadata()

# The deadline reaches the server, and ends the call.
left = float(unary("TimeLeft")(b"", timeout=20))
# It is rounded up on its way.
assert 0 < left < 21, left
silent = channel.unary_stream("/test.Bytes/Silent")
began = time.monotonic()
replies = silent(b"", timeout=0.5)
assert next(replies) == b"first"
error = failure(lambda: next(replies))
assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
assert time.monotonic() - began < 10


def departures():
    return int(unary("CountDepartures")(b"", timeout=30))


def wait_for_departure(before):
    until = time.monotonic() + 10
    while departures() <= before:
        assert time.monotonic() < until, "the server never learns that the client has left"
        time.sleep(0.01)


wait_for_departure(0)
# So does a client that cancels.
before = departures()
replies = silent(b"", timeout=30)
assert next(replies) == b"first"
replies.cancel()
wait_for_departure(before)

# The gateway's own answers.
assert channel.unary_unary("/limited.Bytes/Unary")(b"ab", timeout=30) == b"ba"
error = failure(lambda: channel.unary_unary("/limited.Bytes/Unary")(b"", timeout=30))
assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
assert "limit `calls` exceeded" in error.details(), error.details()
trailing = dict(error.trailing_metadata())
assert int(trailing["retry-after-ms"]) > 0, trailing
assert trailing["grpc-retry-pushback-ms"] == trailing["retry-after-ms"], trailing
assert trailing["ratelimit"].startswith('"calls";r=0;t='), trailing
error = failure(lambda: channel.unary_unary("/nobody.Bytes/Unary")(b"", timeout=30))
assert error.code() == grpc.StatusCode.UNAVAILABLE, error
assert error.details() == "the upstream could not be reached", error
error = failure(lambda: channel.unary_unary("/elsewhere/Unary")(b"", timeout=30))
assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
error = failure(lambda: channel.unary_unary("/late.Bytes/Never")(b"", timeout=30))
assert error.code() == grpc.StatusCode.DEADLINE_EXCEEDED, error
assert error.details() == "the upstream took too long to answer", error
