#!/usr/bin/env python3
"""Measure the script on its own Redis: server time per decision, and memory per bucket.

The times are Redis's own (INFO commandstats, usec of EVALSHA): neither the network nor this program is in them. All
cases take turns in chunks of a few milliseconds; a row shows the tenth percentile of its chunks, since whatever else
the machine does can only add, and the median. README.md says how to read the tables.
"""

import argparse
import dataclasses
import fnmatch
import pathlib
import random
import re
import signal
import socket
import struct
import sys
import tempfile
import time

from processes import Invalid, Processes, free_ports

ROOT = pathlib.Path(__file__).resolve().parent.parent

KEYS = 64
PLENTY = 2_000_000_000
CROWD = 50_000
CELLS = 60
ONES, MIXED = range(1, 2), range(1, 10)

NAMES = {"sw": "sliding-window", "sc": "sliding-cells", "fw": "fixed-window", "gc": "gcra", "cc": "concurrency"}
NAMES["rl"] = "sliding-window, with refunds"
NAMES["rs"] = "sliding-window, Redisson's layout"
CLIENT = "0f8e1c5a-6d2b-4a7e-9c3f-5b1d7e2a4c60"


class Redis:
    """A connection with RESP 2."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answers = self.socket.makefile("rb")

    def __call__(self, *words):
        return self.send([command(*words)])[0]

    def send(self, commands):
        """Sends commands at once, and reads their replies."""
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

    def spent_us(self):
        """Returns the microseconds that calls of the script have taken since the last call of this."""
        stats = re.search(rb"cmdstat_evalsha:calls=\d+,usec=(\d+)", self("INFO", "commandstats"))
        self("CONFIG", "RESETSTAT")
        return int(stats[1]) if stats else 0


def command(*words):
    words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


def source(lua):
    """The script of a folder, put together in the order of crates/limiter/src/store/script.rs."""
    files = re.findall(r'"/lua/(\w+\.lua)"', (ROOT / "crates/limiter/src/store/script.rs").read_text())
    if not files:
        raise Invalid("crates/limiter/src/store/script.rs includes no file of lua/")
    return "".join((lua / file).read_text() for file in files)


def packed(values):
    """Encodes a MessagePack list of integers and short texts."""
    parts = [struct.pack(">BI", 0xDD, len(values))]
    for value in values:
        if isinstance(value, str):
            parts.append(struct.pack(">BB", 0xD9, len(value)) + value.encode())
        elif -32 <= value <= 127:
            parts.append(struct.pack(">b", value))
        else:
            parts.append(struct.pack(">Bq", 0xD3, value))
    return b"".join(parts)


@dataclasses.dataclass(frozen=True)
class Quota:
    """A limit in the form of the script's arguments: lua/walk.lua."""

    tag: str
    permits: int = PLENTY
    window_ms: int = 60_000
    cells: int = CELLS

    def words(self, buckets, turn):
        parameter = {"sc": self.cells, "gc": self.permits, "cc": f"{0x8C1F0A52D3E97B46:x}.{turn:x}."}
        # Random bytes of the call, the type of a new limiter, and the client.
        parameter["rs"] = f"{random.getrandbits(56):014x}0{CLIENT}"
        parameter = parameter.get(self.tag, 0)
        return [self.tag, self.permits, self.window_ms * 1000, parameter, buckets]

    def name(self, number):
        if self.tag == "rs":
            return f"logins:{number:032x}"
        return f"tollgate:per-client:{self.tag}:{{header:x-key=sha256/{number:032x}}}"

    def keys(self, numbers):
        """All keys of buckets, as the script takes them."""
        names = [self.name(number) for number in numbers]
        if self.tag != "rs":
            return names
        suffixes = [f":value:{CLIENT}", ":value", f":permits:{CLIENT}", ":permits"]
        return names + [f"{{{name}}}{suffix}" for name in names for suffix in suffixes]

    def log(self, number):
        """The key that holds the grants."""
        return f"{{{self.name(number)}}}:permits" if self.tag == "rs" else self.name(number)


def call(sha, quota, numbers, requests, turn):
    """An operation that decides requests, each on another bucket: its count and its cost."""
    words = quota.words(len(numbers), turn)
    for at, (count, cost) in enumerate(requests, 1):
        words += [-count, at, cost]
    keys = quota.keys(numbers)
    return command("EVALSHA", sha, len(keys), *keys, packed(words))


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind of work."""

    name: str
    quota: Quota
    at_most: float | None = None
    keys: int = KEYS
    # The number of equal requests per key in each call, and their costs.
    count: int = 1
    costs: range = ONES
    # The number of keys from which those of a call are taken.
    of: int = KEYS
    # The calls before the measurement, and the calls of a chunk.
    warm_up: int = 20
    chunk: int = 8
    # The costs in the warm-up, if they differ.
    filled_by: range | None = None

    def calls(self, sha):
        """Returns the commands, always the same: the warm-up and five chunks."""
        choice = random.Random(self.name)
        for turn in range(self.warm_up + 5 * self.chunk):
            numbers = choice.sample(range(self.of), self.keys)
            costs = self.filled_by if turn < self.warm_up and self.filled_by else self.costs
            requests = [(self.count, choice.choice(costs)) for _ in numbers]
            yield call(sha, self.quota, numbers, requests, turn)


def cases():
    """Returns the cases with their maxima."""
    for tag, name in NAMES.items():
        if tag in ("rs", "rl"):
            yield from other_layout_cases(tag, name)
            continue
        # A GCRA bucket that never fills must not exceed the greatest level.
        quota = Quota(tag, 100_000 if tag == "gc" else PLENTY)
        yield Case(f"{name}, one decision a call", quota, keys=1, of=1, warm_up=300, chunk=60)
        yield Case(f"{name}, hot key, 32 in a call", quota, 2.0, keys=1, of=1, count=32, chunk=40)
        yield Case(f"{name}, {KEYS} keys", quota, 5.0)
        if tag != "cc":
            yield Case(f"{name}, {KEYS} keys, costs", quota, 8.0, costs=MIXED)
        yield Case(f"{name}, {KEYS} of 10,000 keys", quota, 5.0, of=10_000, warm_up=300)
        if tag in ("sw", "sc"):
            # Each request sees an older entry expire, of about seven in the window.
            short = dataclasses.replace(quota, window_ms=10, cells=20)
            some = {"of": 4 * KEYS, "warm_up": 120, "chunk": 16}
            yield Case(f"{name}, {KEYS} keys, expiring", short, 5.0, **some)
            yield Case(f"{name}, {KEYS} keys, expiring, costs", short, 8.0, costs=MIXED, **some)
        full = dataclasses.replace(quota, permits=20)
        yield Case(f"{name}, {KEYS} keys, refused", full, 5.0, warm_up=40)
        if tag != "cc":
            full = dataclasses.replace(quota, permits=100)
            yield Case(f"{name}, {KEYS} keys, refused, costs", full, 8.0, costs=MIXED, warm_up=60)
    for entries in (100, 10_000):
        few = {"keys": 8, "of": 8, "warm_up": entries, "chunk": 20}
        yield Case(f"sliding-window, log of {entries:,}", Quota("sw"), **few)
        full = Quota("sw", permits=entries)
        yield Case(f"sliding-window, log of {entries:,}, refused, costs", full, costs=MIXED, filled_by=ONES, **few)


def other_layout_cases(tag, name):
    """The layouts of some sliding windows, which aren't for speed."""
    quota = Quota(tag)
    yield Case(f"{name}, one decision a call", quota, keys=1, of=1, warm_up=300, chunk=60)
    yield Case(f"{name}, hot key, 32 in a call", quota, keys=1, of=1, count=32, chunk=40)
    yield Case(f"{name}, {KEYS} keys", quota)
    short = dataclasses.replace(quota, window_ms=10)
    yield Case(f"{name}, {KEYS} keys, expiring", short, of=4 * KEYS, warm_up=120, chunk=16)
    yield Case(f"{name}, {KEYS} keys, refused", dataclasses.replace(quota, permits=20), warm_up=40)


# A case compared with another, and the maximum of the ratio.
RATIOS = [
    ("sliding-window, log of 10,000", "sliding-window, log of 100", 2.0),
    ("sliding-window, log of 10,000, refused, costs", "sliding-window, log of 100, refused, costs", 2.0),
]


def measure(redis, sha, chosen, rounds):
    """Returns the microseconds per decision, in each chunk of each case."""
    commands = {case: list(case.calls(sha)) for case in chosen}
    seen = {case: [] for case in chosen}
    for _ in range(rounds):
        for case in chosen:
            redis("FLUSHALL")
            for at in range(0, case.warm_up, 20):
                redis.send(commands[case][at : min(at + 20, case.warm_up)])
            redis.spent_us()
            for at in range(case.warm_up, len(commands[case]), case.chunk):
                redis.send(commands[case][at : at + case.chunk])
                seen[case].append(redis.spent_us() / (case.chunk * case.keys * case.count))
    return {case.name: sorted(chunks) for case, chunks in seen.items()}


def percentile(values, of):
    return values[len(values) * of // 100]


def print_times(chosen, seen):
    """Prints the table of times. Returns whether all are within their maxima."""
    is_fine = True
    print(f"{'µs of Redis a decision':52} {'p10':>6} {'median':>7} {'at most':>8}")
    for case in chosen:
        low, middle = (percentile(seen[case.name], of) for of in (10, 50))
        is_fine &= case.at_most is None or low <= case.at_most
        bound = "" if case.at_most is None else f"{case.at_most:8.1f}"
        print(f"{case.name:52} {low:6.2f} {middle:7.2f} {bound}")
    for row, base, at_most in RATIOS:
        if row in seen and base in seen:
            ratio = percentile(seen[row], 10) / percentile(seen[base], 10)
            is_fine &= ratio <= at_most
            print(f"{'  … over that of ' + base.removeprefix('sliding-window, '):52} {ratio:6.2f} {'':7} {at_most:8.1f}")
    return is_fine


def longest_call(redis, sha, tag, alive):
    """Returns the longest of many calls after many entries have expired, in milliseconds."""
    redis("FLUSHALL")
    long, short = Quota(tag), Quota(tag, window_ms=1_000)
    # Leases have no window that an edit could shorten.
    plant = short if tag == "cc" else long
    for at in range(0, CROWD, 500):
        redis.send([call(sha, plant, [0], [(1, 1)], turn) for turn in range(at, at + 500)])
    time.sleep(1.1)
    for turn in range(alive):
        redis.send([call(sha, long, [0], [(1, 1)], CROWD + turn)])
    longest_us = 0
    for turn in range(200):
        redis.spent_us()
        redis.send([call(sha, short, [0], [(1, 1)], 2 * CROWD + turn)])
        longest_us = max(longest_us, redis.spent_us())
    return longest_us / 1000


def bytes_of(redis, sha, tag, permits):
    """Returns the memory of a full bucket, with each permit granted at a different time."""
    redis("FLUSHALL")
    window_ms = 1_000 if tag == "sc" else 60_000
    quota, began = Quota(tag, permits, window_ms), time.monotonic()
    for turn in range(permits):
        # Cells are filled evenly, over nearly the whole window.
        while tag == "sc" and time.monotonic() < began + 0.98 * turn / permits:
            pass
        redis.send([call(sha, quota, [0], [(1, 1)], turn)])
    return redis("MEMORY", "USAGE", quota.log(0), "SAMPLES", "0")


def print_bytes(redis, sha):
    limits = (10, 100, 1_000, 10_000)
    print("\n" + f"{'bytes of a full bucket, its name of 76 included':52}" + "".join(f"{f'L = {limit:,}':>12}" for limit in limits))
    for tag, name in NAMES.items():
        row = "".join(f"{bytes_of(redis, sha, tag, limit):12,}" for limit in limits)
        print(f"{name + (f', {CELLS} cells' if tag == 'sc' else ''):52}{row}")


def run(redis, options):
    sha = redis("SCRIPT", "LOAD", source(options.lua)).decode()
    chosen = [case for case in cases() if fnmatch.fnmatch(case.name, options.only)]
    is_fine = print_times(chosen, measure(redis, sha, chosen, options.rounds))
    if options.only != "*":
        return is_fine
    print(f"\n{f'longest call when {CROWD:,} entries have expired, ms':52} {'':6} {'':7} {'at most':>8}")
    for tag, alive in (("sw", 0), ("sw", 1), ("cc", 0)):
        longest_ms = longest_call(redis, sha, tag, alive)
        is_fine &= longest_ms <= 20
        print(f"{NAMES[tag] + (', all but one' if alive else ''):52} {longest_ms:6.2f} {'':7} {20:8.1f}")
    print_bytes(redis, sha)
    return is_fine


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="*", help="measure the times of rows that match a pattern, and nothing else")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--lua", type=pathlib.Path, default=ROOT / "lua", help="another folder of the script's files")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as scratch, Processes(pathlib.Path(scratch)) as processes:
        [port] = free_ports(1)
        server = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", scratch]
        with processes.server(server, 0, port):
            return 0 if run(Redis(port), options) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as invalid:
        sys.exit(f"error: {invalid}")
