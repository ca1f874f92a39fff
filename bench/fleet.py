#!/usr/bin/env python3
"""Measure Redis's cost of a request by the number of real gateways, and the memory of many keys.

Gateways of one worker each share one Redis, at the same rate of requests in all, beside what the simulation of
bench/scaling says of them. Then one gateway counts ever more keys, in Redis and in its own process. docs/scaling.md says
what follows from the figures.
"""

import argparse
import contextlib
import json
import pathlib
import re
import signal
import sys
import tempfile

from clients import read_wrk, round_trips_us
from growth import cpu_us as redis_cpu_us
from measure import BENCH, BUILD_SECONDS, GATEWAY_CPU, OTHER_CPU, ROOT, TOLERATED_SHARE
from processes import Invalid, Processes, cpu_us, free_ports, memory_mib
from script import Redis

# No request is refused, and no key expires while it is measured.
CONFIG = """
[server]
listen = "127.0.0.1:{port}"
workers = 1

[store]
url = "{store}"
timeout = "1s"
on_failure = "deny"
max_memory = "16GiB"

[limits.plenty]
key = "header:x-key"
rate = "{rate}"

[[routes]]
path = "/"
limits = ["plenty"]
respond = {{ body = "ok" }}
"""
# The limit of bench/scaling is that of the gateways here.
SHORT, LONG = "1000/10s", "1000/h"
WINDOW_SECONDS = 10
# Gives each request a key of its own, from one number to another.
NEW_KEYS = """
local number, last
function init(args)
  number, last = tonumber(args[1]), tonumber(args[2])
end
function request()
  if number < last then number = number + 1 end
  return "GET / HTTP/1.1\\r\\nHost: localhost\\r\\nX-Key: client-" .. number .. "\\r\\n\\r\\n"
end
"""
FILL_SECONDS = 5
CONNECTIONS = 64


class Fleet:
    """Gateways of one build, and the Redis that they share."""

    def __init__(self, options, processes):
        self.options = options
        self.processes = processes
        self.scratch = processes.scratch

    @contextlib.contextmanager
    def redis(self):
        """Yields a fresh server's port, process and connection."""
        port = free_ports(1)[0]
        command = ["redis-server", "--port", str(port), "--save", "", "--dir", str(self.scratch)]
        with self.processes.server(command, OTHER_CPU, port) as server:
            yield port, server, Redis(port)

    def gateways(self, stack, count, store, rate):
        """Starts gateways. Returns their ports and processes."""
        ports = free_ports(count)
        for port in ports:
            (self.scratch / f"{port}.toml").write_text(CONFIG.format(port=port, store=store, rate=rate))
        commands = {port: [self.options.binary, "run", "--config", self.scratch / f"{port}.toml"] for port in ports}
        return ports, [
            stack.enter_context(self.processes.server(list(map(str, command)), GATEWAY_CPU, port))
            for port, command in commands.items()
        ]

    def load(self, ports, rate, seconds):
        """Sends requests at a fixed rate. Raises Invalid if too many failed."""
        ports = ",".join(map(str, ports))
        command = [self.scratch / "open_loop", ports, "/", seconds, rate, self.options.keys, 0, 1]
        seen = json.loads(self.processes.output(list(map(str, command)), seconds + 30))
        if seen["not_2xx"] + seen["broken"] > TOLERATED_SHARE * seen["requests"]:
            raise Invalid(f"{seen['not_2xx']} requests were refused, {seen['broken']} connections broke")
        return seen

    def shared(self, count, rate):
        """Prints what requests cost if so many gateways share the counts."""
        with contextlib.ExitStack() as stack:
            port, server, redis = stack.enter_context(self.redis())
            ports, gateways = self.gateways(stack, count, f"redis://127.0.0.1:{port}", SHORT)
            # As many entries come as expire, from then on.
            self.load(ports, rate, WINDOW_SECONDS + 1)
            trip_us = round_trips_us(redis.socket, 1)[0]
            redis("CONFIG", "RESETSTAT")
            before = redis_cpu_us(redis), sum(map(cpu_us, gateways))
            seen = self.load(ports, rate, self.options.seconds)
            after = redis_cpu_us(redis), sum(map(cpu_us, gateways))
            calls = int(re.search(rb"cmdstat_evalsha:calls=(\d+)", redis("INFO", "commandstats"))[1])
        sent = rate * self.options.seconds
        of_redis, of_gateways = (end - start for start, end in zip(before, after))
        modelled = self.modelled(count, rate, trip_us)
        print(
            f"| {count} | {rate:,} | {calls / sent:.2f} | {modelled:.2f} | {of_redis / calls:.1f} | {of_redis / sent:.1f} "
            f"| {of_redis / self.options.seconds / 1e4:.0f} % | {of_gateways / sent:.0f} | {seen['p50_us']} | {seen['p99_us']} |",
            flush=True,
        )

    def modelled(self, count, rate, trip_us):
        """Returns the calls a request that the simulation expects."""
        options = f"--gateways {count} --workers 1 --requests {rate} --keys {self.options.keys} --skew 0 --rate {SHORT}"
        options += f" --seconds 5 --failure 0 --round-trip-us {trip_us:.0f}"
        command = ["cargo", "bench", "--quiet", "--locked", "-p", "tollgate-limiter", "--bench", "scaling", "--"]
        with contextlib.chdir(ROOT):
            text = self.processes.output(command + options.split(), BUILD_SECONDS)
        return float(next(line for line in text.splitlines() if "healthy |" in line).split("|")[6])

    def memory(self, keys):
        """Prints what so many keys occupy, in Redis and in the gateway."""
        with contextlib.ExitStack() as stack:
            port, server, redis = stack.enter_context(self.redis())
            empty_mib = memory_mib(server, "VmRSS")
            _, gateway_mib = self.fill(f"redis://127.0.0.1:{port}", keys)
            stored = redis("DBSIZE")
            used = int(re.search(rb"used_memory:(\d+)", redis("INFO", "memory"))[1])
            resident_mib = memory_mib(server, "VmRSS")
        print_memory("Redis", stored, used, resident_mib - empty_mib, gateway_mib)
        empty_mib, gateway_mib = self.fill("memory:", keys)
        print_memory("the gateway", keys, None, gateway_mib - empty_mib, gateway_mib)

    def fill(self, store, keys):
        """Counts a request of each key. Returns the gateway's memory before and after."""
        script = self.scratch / "keys.lua"
        script.write_text(NEW_KEYS)
        with contextlib.ExitStack() as stack:
            (port,), (gateway,) = self.gateways(stack, 1, store, LONG)
            empty_mib, counted = memory_mib(gateway, "VmRSS"), 0
            command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{FILL_SECONDS}s", "--latency", "--timeout", "10s", "-s", str(script)]
            command += [f"http://127.0.0.1:{port}/", "--"]
            while counted < keys:
                seen = read_wrk(self.processes.output([*command, str(counted), str(keys)], FILL_SECONDS + 30))
                counted += seen.requests
                # What is sent beyond the last key repeats it, until it has no permits left.
                if seen.not_2xx and counted < keys:
                    raise Invalid(f"{seen.not_2xx} requests were refused")
            return empty_mib, memory_mib(gateway, "VmRSS")


def print_memory(counted_in, keys, used, grown_mib, gateway_mib):
    used = f"{used / keys:.0f}" if used else "–"
    print(f"| {keys:,} | {counted_in} | {used} | {grown_mib * 2**20 / keys:.0f} | {grown_mib:,.0f} | {gateway_mib:,.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=ROOT / "target" / "release" / "tollgate", help="the gateway [default: the release build]")
    parser.add_argument("--gateways", default="1,2,4,8,16,32,64", help="numbers of gateways")
    parser.add_argument("--rates", default="1000,4000", help="requests per second, of all gateways together")
    parser.add_argument("--keys", type=int, default=10_000, help="keys of the requests to several gateways")
    parser.add_argument("--seconds", type=int, default=10, help="for which each number of gateways is measured")
    parser.add_argument("--memory", default="1000000,10000000", help="numbers of keys of which the memory is measured")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    numbers = lambda text: [int(number) for number in text.split(",") if number]
    with tempfile.TemporaryDirectory() as scratch, Processes(pathlib.Path(scratch)) as processes:
        generator = ["rustc", "--edition", "2024", "-O", "-o", f"{scratch}/open_loop", str(BENCH / "open_loop.rs")]
        processes.output(generator, BUILD_SECONDS)
        fleet = Fleet(options, processes)
        print("| gateways | requests/s | calls a request | simulated | Redis µs a call | Redis µs a request | Redis busy | gateways µs a request | p50 µs | p99 µs |")
        print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
        for rate in numbers(options.rates):
            for count in numbers(options.gateways):
                fleet.shared(count, rate)
        print("\n| keys | counted in | bytes a key, by Redis | resident bytes a key | MiB of them | gateway MiB |")
        print("|--:|---|--:|--:|--:|--:|", flush=True)
        for keys in numbers(options.memory):
            fleet.memory(keys)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as invalid:
        sys.exit(f"error: {invalid}")
