"""A client of the rate limit service and of its health, with grpcio and messages written by hand.

Its argument is the address. The limit is three of the descriptor `k=a` in the domain `d`.
When it watches, it prints a line, and the service is to drain then.
"""

import sys

import grpc


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


def read(message):
    """The fields of a message by number: numbers, and bytes of what has a length."""
    fields, place = {}, 0

    def varint():
        nonlocal place
        value, shift = 0, 0
        while True:
            byte = message[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(message):
        tag = varint()
        value = varint()
        if tag & 7 == 2:
            value, place = message[place : place + value], place + value
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def call(kind, path):
    return kind(path, request_serializer=bytes, response_deserializer=read)


with grpc.insecure_channel(sys.argv[1]) as channel:
    check = call(channel.unary_unary, "/grpc.health.v1.Health/Check")
    assert check(b"")[1] == [1] and check(field(1, b"ratelimit"))[1] == [1]
    try:
        check(field(1, b"other"))
        raise AssertionError("there is no such service")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.NOT_FOUND, error

    decide = call(channel.unary_unary, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")
    descriptor = field(1, field(1, b"k") + field(2, b"a"))
    request = field(1, b"d") + field(2, descriptor)
    for left in [2, 1, 0]:
        answer = decide(request, timeout=5)
        status = read(answer[2][0])
        assert answer[1] == [1] and status[1] == [1] and status.get(3, [0]) == [left], (answer, status)
    answer = decide(request, timeout=5)
    fields = {read(added)[1][0]: read(added)[2][0] for added in answer[3]}
    assert answer[1] == [2] and int(fields[b"retry-after"]) > 0 and b"ratelimit" in fields, answer
    assert b"quota-exceeded" in answer[5][0], answer
    for bad in [b"", field(1, b"d"), field(2, descriptor), b"\x0a\xff"]:
        try:
            decide(bad)
            raise AssertionError(f"decided: {bad}")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.INVALID_ARGUMENT, error

    healths = call(channel.unary_stream, "/grpc.health.v1.Health/Watch")(b"")
    assert next(healths)[1] == [1]
    print("watching", flush=True)
    assert next(healths)[1] == [2]
    assert list(healths) == []
