#!/usr/bin/env python3
"""Measure the script on Redis: microseconds of server time per decision, and bytes per bucket.

The figures are Redis's own (INFO commandstats, usec of EVALSHA), so neither the network nor this program is in
them. All cases take turns in short chunks; the table shows the tenth percentile of a case's chunks, because
whatever else the machine does can only add. README.md says how to read the tables.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import itertools
import pathlib
import random
import re
import socket
import sys
import tempfile
import time

from processes import Invalid, Processes, free_ports

ROOT = pathlib.Path(__file__).resolve().parent.parent
LUA = ROOT / "lua"

KEYS = 64
WINDOW_MS = 10
# A bucket's name as the gateway writes it for a header.
NAME = "tollgate:per-client:{tag}:{{header:x-key=sha256/{number:032x}}}"

ALGORITHMS = {"sw": "sliding-window", "sc": "sliding-cells", "fw": "fixed-window", "gc": "gcra", "cc": "concurrency"}


class Redis:
    """A connection that speaks RESP 2."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("rb")

    def __call__(self, *words):
        return self.pipeline([encoded(words)])[0]

    def pipeline(self, commands):
        """Sends encoded commands at once, and reads their answers."""
        self.socket.sendall(b"".join(commands))
        return [self.answer() for _ in commands]

    def answer(self):
        line = self.answers.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise Invalid(rest.decode())
        if kind == b"$":
            return self.answers.read(int(rest) + 2)[:-2] if rest != b"-1" else None
        if kind == b"*":
            return [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b":" else rest

    def spent(self):
        """Calls of EVALSHA and the microseconds that they took, since the last time."""
        stats = re.search(rb"cmdstat_evalsha:calls=(\d+),usec=(\d+)", self("INFO", "commandstats"))
        self("CONFIG", "RESETSTAT")
        return (int(stats[1]), int(stats[2])) if stats else (0, 0)


def encoded(words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def source(lua):
    """The script, put together as src/store/script.rs does it."""
    files = re.findall(r'include_str!\("../../lua/(\w+\.lua)"\)', (ROOT / "src/store/script.rs").read_text())
    if not files:
        raise Invalid("src/store/script.rs includes no file of lua/")
    return "".join((lua / file).read_text() for file in files)


@dataclasses.dataclass(frozen=True)
class Terms:
    """A quota as the script takes it: lua/walk.lua."""

    tag: str
    permits: int
    window_ms: int = WINDOW_MS

    def words(self, buckets, call):
        parameter = {"sc": 10, "gc": self.permits, "cc": f"bench.{call}."}.get(self.tag, 0)
        return [self.tag, self.permits, self.window_ms * 1000, parameter, buckets]


def call(sha, terms, numbers, requests, turn=0):
    """One EVALSHA: requests are (count, bucket, cost), buckets counted from 0."""
    names = [NAME.format(tag=terms.tag, number=number) for number in numbers]
    alone = sha in ALONE
    groups = itertools.chain.from_iterable((-count, bucket + 1, cost) if alone else (count, 1, bucket + 1, cost) for count, bucket, cost in requests)
    words = [*terms.words(len(names), turn), *groups]
    if sha in PACKED:
        words = [packed(words)]
    return encoded(["EVALSHA", sha, len(names), *names, *words])


PACKED = set()
ALONE = set()


def packed(words):
    import struct
    out = b"\xdd" + struct.pack(">I", len(words))
    for word in words:
        if isinstance(word, str): out += b"\xd9" + bytes([len(word)]) + word.encode()
        elif word < 0: out += b"\xd2" + struct.pack(">i", word)
        elif word < 128: out += bytes([word])
        elif word < 2**32: out += b"\xce" + struct.pack(">I", word)
        else: out += b"\xcf" + struct.pack(">Q", word)
    return out


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of work, as commands that are sent in turn, and the decisions of each."""

    name: str
    terms: Terms
    make: object
    decisions: int
    at_most: float | None = None
    before: object = None


def hot(count, cost=1):
    return lambda sha, terms, turn: call(sha, terms, [0], [(count, 0, cost)], turn)


def distinct(costs, of=KEYS):
    """One request for each of 64 keys."""

    def make(sha, terms, turn):
        numbers = random.sample(range(of), KEYS)
        return call(sha, terms, numbers, [(1, at, random.choice(costs)) for at in range(KEYS)], turn)

    return make


def cases():
    """What is measured."""
    plenty = 2_000_000_000
    ones, mixed = range(1, 2), range(1, 10)
    for tag in ALGORITHMS:
        window_ms = 10 if tag != "gc" else 4_000
        room = plenty if tag != "gc" else 1_000_000
        yield Case(f"{tag} one decision", Terms(tag, room, window_ms), hot(1), 1)
        yield Case(f"{tag} hot key x32", Terms(tag, room, window_ms), hot(32), 32, 2.0)
        yield Case(f"{tag} 64 keys", Terms(tag, room, window_ms), distinct(ones), KEYS, 5.0)
        if tag != "cc":
            yield Case(f"{tag} 64 keys, costs", Terms(tag, room, window_ms), distinct(mixed), KEYS, 8.0)
        if tag in ("sw", "sc"):
            yield Case(f"{tag} 64 keys filling", Terms(tag, room, 60_000), distinct(ones), KEYS, 5.0)
            yield Case(f"{tag} 64 keys filling, costs", Terms(tag, room, 60_000), distinct(mixed), KEYS, 8.0)
            yield Case(f"{tag} 64 keys expiring", Terms(tag, room, 10), distinct(ones), KEYS, 5.0)
            yield Case(f"{tag} 64 keys expiring, costs", Terms(tag, room, 10), distinct(mixed), KEYS, 8.0)
            yield Case(f"{tag} 64 keys long", Terms(tag, room, 150), distinct(ones), KEYS, 5.0)
            yield Case(f"{tag} 64 keys long, costs", Terms(tag, room, 150), distinct(mixed), KEYS, 8.0)
        yield Case(f"{tag} 64 keys of 10,000", Terms(tag, room, 60_000), distinct(ones, 10_000), KEYS, 5.0)
        yield Case(f"{tag} 64 keys, some refused", Terms(tag, 20, 10), distinct(ones), KEYS, 5.0)
        yield Case(f"{tag} 64 keys, refused", Terms(tag, 20, 60_000), distinct(ones), KEYS, 5.0)
        if tag != "cc":
            yield Case(f"{tag} 64 keys, refused, costs", Terms(tag, 100, 60_000), distinct(mixed), KEYS, 8.0)


def measure(redis, shas, chosen, rounds):
    prepared = {}
    for case in chosen:
        for label, sha in shas.items():
            random.seed(7)
            prepared[case, label] = [case.make(sha, case.terms, turn) for turn in range(300)]
    seen = {key: [] for key in prepared}
    for _ in range(rounds):
        for (case, label), commands in prepared.items():
            redis("FLUSHALL")
            warm = 16 if "of 10,000" not in case.name else 160
            if "expiring" in case.name: warm = 120
            for at in range(0, warm, 8): redis.pipeline(commands[at:at + 8])
            size = 8 if case.decisions > 1 else 60
            if "expiring" in case.name: size = 6
            redis.spent()
            for at in range(0, 5 * size, size):
                redis.pipeline(commands[at:at + size])
                count, spent_us = redis.spent()
                seen[case, label].append(spent_us / count / case.decisions)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--against", action="append", default=[], type=pathlib.Path)
    parser.add_argument("--only", default="*")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch, Processes(pathlib.Path(scratch)) as processes:
        port = free_ports(1)[0]
        with processes.server(["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"], 0, port):
            redis = Redis(port)
            shas = {"now": redis("SCRIPT", "LOAD", source(LUA)), "joint": redis("SCRIPT", "LOAD", source(LUA) + " ")}
            PACKED.update(shas.values())
            ALONE.add(shas["now"])
            for path in options.against:
                shas[path.name] = redis("SCRIPT", "LOAD", source(path))
                if "cmsgpack" in source(path): PACKED.add(shas[path.name]), ALONE.add(shas[path.name])
            chosen = [case for case in cases() if fnmatch.fnmatch(case.name, options.only)]
            seen = measure(redis, shas, chosen, options.rounds)
            for case in chosen:
                figures = []
                for label in shas:
                    v = sorted(seen[case, label])
                    figures.append(f"{label} {v[len(v)//10]:6.2f} ({v[len(v)//2]:6.2f})")
                print(f"{case.name:32} {case.at_most or 0:4}  " + "  ".join(figures))


if __name__ == "__main__":
    main()
