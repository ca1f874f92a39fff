#!/usr/bin/env python3
"""Measure how Redis's cost of a decision grows with buckets in a call, keys, charges, entries and windows.

Three figures: instructions of the server in user mode (callgrind), which other load doesn't change; Redis's own time in
the script (INFO commandstats, the tenth percentile of chunks); and the CPU time of the whole server, user and kernel, for
calls that come on many connections at once, beside PING. docs/scaling.md says what follows from them.
"""

import argparse
import dataclasses
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from processes import Invalid, Processes, free_ports
from script import PLENTY, ROOT, Quota, Redis, command, packed, percentile, source

HOUR_MS = 3_600_000
FILL = 256
# More keys than these would take callgrind minutes to fill: of them only the time is measured.
COUNTED_KEYS = 10_000


@dataclasses.dataclass(frozen=True)
class Case:
    """Calls of one kind, on keys that are there already."""

    table: str
    name: str
    # The requests in a call, each on another key, and the charges of each.
    requests: int = 1
    charges: int = 1
    # Equal requests in each group.
    count: int = 1
    # The number of keys, from which those of a call are taken, and the entries that each has before.
    keys: int = 256
    entries: int = 2
    permits: int = PLENTY
    window_ms: int = HOUR_MS
    # The time between calls: for windows in which entries expire.
    pace_ms: float = 0
    # Calls that are measured: few, since each adds entries.
    calls: int = 24

    def quota(self):
        return Quota("sw", self.permits, self.window_ms)

    def commands(self, sha):
        """Returns the calls, always the same."""
        choice = random.Random(self.name)
        for _ in range(self.calls):
            numbers = choice.sample(range(self.keys), self.requests * self.charges)
            yield request(sha, self.quota(), numbers, self.charges, self.count)


def request(sha, quota, numbers, charges, count):
    """A call of requests with so many charges each, as crates/limiter/src/store/script.rs writes it."""
    words = quota.words(len(numbers), 0)
    for at in range(1, len(numbers) + 1, charges):
        words += [-count, at, 1] if charges == 1 else [count, charges]
        words += [word for place in range(at, at + charges) if charges > 1 for word in (place, 1)]
    return command("EVALSHA", sha, len(numbers), *quota.keys(numbers), packed(words))


def cases(most):
    """Returns the cases, with at most so many keys or entries."""
    buckets = "buckets in a call"
    for requests in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        yield Case(buckets, f"{requests}", requests, keys=1024, calls=24 if requests > 1 else 96)
    yield Case(buckets, "1, for 32 equal requests", 1, count=32, keys=1024, calls=96)
    for requests in (1, 16):
        for charges in (1, 2, 4, 8, 16):
            name = f"{requests} request{'s' if requests > 1 else ''}, {charges} charge{'s' if charges > 1 else ''} each"
            yield Case("charges", name, requests, charges, keys=1024)
    for keys in filter(lambda keys: keys <= most, (1, 100, 10_000, 1_000_000)):
        yield Case("keys, one in a call", f"{keys:,}", 1, keys=keys, calls=16 if keys == 1 else 96)
    for keys in filter(lambda keys: keys <= most, (64, 1_000, 10_000, 100_000, 1_000_000)):
        yield Case("keys, 64 in a call", f"{keys:,}", 64, keys=keys, calls=8 if keys == 64 else 24)
    alive = [entries for entries in (10, 100, 1_000, 10_000, 100_000, 1_000_000) if entries <= most]
    for entries in alive:
        yield Case("entries alive, admitted", f"{entries:,}", keys=1, entries=entries, calls=16)
    for entries in alive:
        yield Case("entries alive = L, refused", f"{entries:,}", keys=1, entries=entries, permits=entries, calls=64)
    for name, window_ms in (("1 s", 1_000), ("1 min", 60_000), ("1 h", HOUR_MS), ("1 day", 24 * HOUR_MS)):
        yield Case("window", name, 64, keys=256, entries=0 if window_ms < 60_000 else 2, window_ms=window_ms, calls=12)
    yield Case("window", "50 ms, one entry expires for each", 64, keys=64, window_ms=50, pace_ms=7, calls=100)


def fill(redis, sha, case):
    """Gives each key its entries."""
    redis("FLUSHALL")
    if case.keys > 1:
        numbers = list(range(case.keys))
        groups = [numbers[at : at + FILL] for at in range(0, case.keys, FILL)]
        calls = (request(sha, case.quota(), group, 1, 1) for _ in range(case.entries) for group in groups)
        for call in calls:
            redis.send([call])
        return
    call = request(sha, case.quota(), [0], 1, 1)
    for at in range(0, case.entries, 500):
        redis.send([call] * min(500, case.entries - at))


def copy(redis, key, content, quota):
    """Puts a filled bucket into another server, which would take long to fill it."""
    redis("FLUSHALL")
    redis("RESTORE", key, 2 * quota.window_ms, content)


def send(redis, case, commands):
    if not case.pace_ms:
        return redis.send(commands)
    for one in commands:
        redis.send([one])
        time.sleep(case.pace_ms / 1000)


def script_us(redis, sha, case, rounds):
    """Returns the tenth percentile of the microseconds of a call, in the script alone."""
    commands, chunks = list(case.commands(sha)), []
    chunk = 4
    for turn in range(rounds if case.entries < 50_000 and case.keys < 50_000 else 1):
        fill(redis, sha, case)
        redis.spent_us()
        for at in range(0, len(commands), chunk):
            part = commands[at : at + chunk]
            send(redis, case, part)
            chunks.append(redis.spent_us() / len(part))
    return percentile(sorted(chunks), 10)


class Callgrind:
    """A redis-server that callgrind counts, on demand."""

    def __init__(self, processes, scratch, port):
        self.port, log = port, scratch / "valgrind.log"
        self.out, self.runs = scratch / "callgrind.out", 0
        server = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={self.out}", f"--log-file={log}"]
        server += ["redis-server", "--port", str(self.port), "--save", "", "--appendonly", "no", "--dir", str(scratch)]
        # Its own work in the background is to be small beside the calls.
        self.server = processes.server([*server, "--hz", "1", "--dynamic-hz", "no"], 0, self.port)

    def control(self, *words):
        done = subprocess.run(["callgrind_control", *words, str(self.pid)], capture_output=True, text=True)
        if done.returncode != 0:
            raise Invalid(f"callgrind_control {' '.join(words)}: {done.stdout}{done.stderr}")

    def instructions(self, redis, case, commands):
        """Returns the instructions of a call."""
        self.control("-i", "on")
        # The first calls are translated.
        send(redis, case, commands[:2])
        self.control("-z")
        send(redis, case, commands[2:])
        self.control("-d")
        self.control("-i", "off")
        self.runs += 1
        text = pathlib.Path(f"{self.out}.{self.runs}").read_text()
        total = re.search(r"^(?:totals|summary): (\d+)", text, re.M)
        if not total:
            raise Invalid(f"{self.out}.{self.runs} has no total")
        return int(total[1]) / (len(commands) - 2)


def line(rows):
    """Fits y = a + b x."""
    count = len(rows)
    mean_x, mean_y = sum(x for x, _ in rows) / count, sum(y for _, y in rows) / count
    slope = sum((x - mean_x) * (y - mean_y) for x, y in rows) / sum((x - mean_x) ** 2 for x, _ in rows)
    return mean_y - slope * mean_x, slope


def print_row(case, instructions, us, is_first):
    if is_first:
        print(f"\n{case.table:42} {'instr. a call':>14} {'a charge':>10} {'µs a call':>10} {'a charge':>9}")
    charges = case.requests * case.charges
    counted = [f"{count:,.0f}" if instructions else "–" for count in (instructions, instructions / charges)]
    print(f"{case.name:42} {counted[0]:>14} {counted[1]:>10} {us:10.2f} {us / charges:9.2f}", flush=True)


def print_laws(measured):
    of = lambda table, least: [row for row in measured if row[0].table == table and row[0].requests * row[0].charges >= least]
    several = [row for row in of("buckets in a call", 2) if row[0].count == 1]
    for what, at, unit in (("instructions", 1, ""), ("µs in the script", 2, " µs")):
        a, b = line([(row[0].requests, row[at]) for row in several])
        worst = max(abs(row[at] / (a + b * row[0].requests) - 1) for row in several)
        print(f"{what}: {a:,.2f}{unit} a call + {b:,.2f}{unit} a bucket, from 2 buckets on; off by at most {worst:.0%}")
    ones = [row for row in of("charges", 2) if row[0].requests == 16]
    a, b = line([(row[0].charges, row[1] / row[0].requests) for row in ones])
    print(f"a request of 16 in a call, from 2 charges on: {a:,.0f} + {b:,.0f} instructions a charge")


def cpu_us(redis):
    """The server's CPU time so far, user and kernel."""
    text = redis("INFO", "cpu").decode()
    of = lambda name: float(re.search(rf"used_cpu_{name}_main_thread:([\d.]+)", text)[1])
    return 1e6 * (of("user") + of("sys"))


def server_us(redis, others, commands, rounds):
    """Returns the CPU time of the server for a call, where one comes on each of many connections at once."""
    chunks = []
    for _ in range(rounds):
        before = cpu_us(redis)
        for one in commands:
            for other in others:
                other.socket.sendall(one)
            for other in others:
                other.answer()
        chunks.append((cpu_us(redis) - before) / (len(commands) * len(others)))
    return percentile(sorted(chunks), 10), percentile(sorted(chunks), 50)


def print_server(redis, port, sha):
    """Prints what a call costs the whole server, kernel included, beside PING."""
    quota = Quota("sw", window_ms=10_000)
    print(f"\n{'CPU of the whole server, µs a call':42} {'p10':>14} {'median':>10} {'over PING':>10}")
    for connections in (1, 8, 64):
        others = [Redis(port) for _ in range(connections)]
        redis("FLUSHALL")
        choice, base = random.Random(7), None
        for name, requests in (("PING", 0), ("1 bucket", 1), ("4 buckets", 4), ("16 buckets", 16), ("64 buckets", 64)):
            times = max(4, 1024 // (connections * max(1, requests // 8)))
            numbers = [choice.sample(range(10_000), requests) for _ in range(times)]
            commands = [request(sha, quota, some, 1, 1) if some else command("PING") for some in numbers]
            low, middle = server_us(redis, others, commands, 24)
            base = base or low
            print(f"{f'{connections} at once, {name}':42} {low:14.2f} {middle:10.2f} {low / base:10.2f}", flush=True)


def measure(scratch, processes, options):
    port, other = free_ports(2)
    plain = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(scratch)]
    callgrind = Callgrind(processes, scratch, other)
    with processes.server(plain, 0, port), callgrind.server as counted_server:
        callgrind.pid = counted_server.pid
        redis, counted = Redis(port), Redis(callgrind.port)
        sha, _ = (each("SCRIPT", "LOAD", source(ROOT / "lua")).decode() for each in (redis, counted))
        print_server(redis, port, sha)
        measured = []
        for case in cases(options.most):
            us = script_us(redis, sha, case, options.rounds)
            commands, is_counted = list(case.commands(sha)), case.keys <= COUNTED_KEYS
            if not is_counted:
                pass
            elif case.keys == 1 and case.entries > 100:
                fill(redis, sha, case)
                name = case.quota().name(0)
                copy(counted, name, redis("DUMP", name), case.quota())
            else:
                fill(counted, sha, case)
            is_first = not measured or measured[-1][0].table != case.table
            measured.append((case, callgrind.instructions(counted, case, commands) if is_counted else 0, us))
            print_row(*measured[-1], is_first)
        print()
        print_laws(measured)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--most", type=int, default=1_000_000, help="leave out cases with more keys or entries")
    parser.add_argument("--rounds", type=int, default=6, help="for the microseconds; instructions are counted once")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with tempfile.TemporaryDirectory() as scratch, Processes(pathlib.Path(scratch)) as processes:
        measure(pathlib.Path(scratch), processes, options)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as invalid:
        sys.exit(f"error: {invalid}")
