"""The rows of the table. Each starts servers, checks them, and measures them under load."""

import collections
import contextlib
import dataclasses
import http.client
import itertools
import os
import pathlib
import socket
import ssl
import statistics
import subprocess
import sys

import clients
from clients import KEY, Load
from processes import Invalid, cpu_us, free_ports, memory_mib

BENCH = pathlib.Path(__file__).resolve().parent
ROOT = BENCH.parent
PEERS = BENCH / "peers"

GATEWAY_CPU, OTHER_CPU = 0, 1
WARM_UP_SECONDS = 1
BUILD_SECONDS = 1800

# The number of keys in rows with many.
MANY_KEYS = 10_000

# The share of responses in a measurement that may differ from those that the row demands.
TOLERATED_SHARE = 0.005


@dataclasses.dataclass(frozen=True)
class Row:
    """A gateway under load: its configuration, and the path that makes it do one kind of work."""

    name: str
    # The configuration. Without one, and without gateways, the load goes to the backend.
    config: pathlib.Path | None
    path: str = "/"
    gateways: int = 1
    # The number of Redis keys with counts; 0 without Redis.
    keys: int = 0
    # The number of requests that pass before all others are rejected; None if all pass.
    admits: int | None = None
    # The number of connections to all gateways together.
    connections: int = 64
    # The requests in flight on each HTTP/2 connection; 0 for HTTP/1.1.
    streams: int = 0
    # The field that has 10,000 values; None if all requests are the same.
    varied: str | None = None
    # The seconds of load before it is measured.
    warm_up: int = WARM_UP_SECONDS
    # The number of shorter measurements that make one. Neighbours with the same number alternate within each round.
    turns: int = 2
    # The build of Tollgate, if the row measures it.
    build: str = "release"
    # `https` for TLS 1.3 to the gateway.
    scheme: str = "http"

    def measure(self, bench):
        """Starts what the row needs, proves that it works, and measures it under load."""
        with contextlib.ExitStack() as stack:
            redis = [stack.enter_context(bench.redis())] if self.keys else []
            ports, gateways = self.start(bench, stack)
            self.check_answers(bench, ports)
            # The same error would happen again.
            with contextlib.suppress(Invalid):
                self.load(bench, ports, self.warm_up)
            servers = [*gateways, *redis]
            before = [cpu_us(server) for server in servers]
            seen = self.load(bench, ports, bench.seconds(self))
            used = [cpu_us(server) - start for server, start in zip(servers, before)]
            self.check_load(bench, ports, seen)
            figures = {"requests_per_s": seen.per_second, "p50_us": seen.p50_us, "p99_us": seen.p99_us}
            if gateways:
                figures["gateway_us"] = sum(used[: len(gateways)]) / seen.requests
                figures["redis_us"] = sum(used[len(gateways) :]) / seen.requests
                figures["total_us"] = sum(used) / seen.requests
                figures["not_2xx"] = seen.not_2xx / seen.requests
                figures["peak_mib"] = sum(memory_mib(gateway, "VmHWM") for gateway in gateways)
            return figures

    def start(self, bench, stack):
        """Starts the gateways. Returns the ports to load, and the processes to measure."""
        ports = bench.gateway_ports[: self.gateways] or [bench.upstream_port]
        commands = {port: bench.gateway(self, port) for port in ports if self.gateways}
        gateways = [
            stack.enter_context(bench.processes.server(command, GATEWAY_CPU, port))
            for port, command in commands.items()
        ]
        return ports, gateways

    def load(self, bench, ports, seconds):
        """Loads the gateways, all at the same time."""
        urls = [f"{self.scheme}://127.0.0.1:{port}{self.path}" for port in ports]
        if self.streams:
            log = bench.processes.scratch / "h2load.log"
            log.unlink(missing_ok=True)
            command = clients.h2load(urls[0], self.connections, self.streams, seconds, log)
            return clients.read_h2load(bench.processes.output(command, seconds + 30), log)
        commands = [clients.wrk(url, self.connections // len(urls), seconds, self.varied) for url in urls]
        return Load.sum([clients.read_wrk(report) for report in bench.processes.outputs(commands, seconds + 30)])

    def check_answers(self, bench, ports):
        """Checks that a row that admits relays the backend's body, and one that rejects does so exactly at its limit."""
        if self.streams:
            if bench.processes.output(["nghttp", f"{self.scheme}://127.0.0.1:{ports[0]}{self.path}"], 10) != bench.body:
                raise Invalid("answers HTTP/2 with another body than the backend's")
            return
        for number in range(len(ports) if self.admits is None else self.admits):
            self.check_answer(bench, ports[number % len(ports)], 200)
        if self.admits is not None:
            self.check_answer(bench, ports[0], 429)

    def check_answer(self, bench, port, expected):
        status, body = fetch(port, self.path, self.scheme)
        if status != expected:
            raise Invalid(f"answers {status} where {expected} is due")
        if status == 200 and body != fetch(bench.upstream_port, self.path)[1]:
            raise Invalid("answers 200 with another body than the backend's")

    def check_load(self, bench, ports, seen):
        """Checks that the load got the same responses, and that Redis has one count per key."""
        wrong = seen.not_2xx if self.admits is None else seen.requests - seen.not_2xx
        if wrong > seen.requests * TOLERATED_SHARE:
            raise Invalid(f"{wrong} of {seen.requests} answers were {'not ' if self.admits is None else ''}2xx")
        self.check_keys(bench, seen)
        if self.admits is not None:
            self.check_answer(bench, ports[0], 429)

    def check_keys(self, bench, seen):
        # Of many keys, each is in one of so many requests.
        if self.keys and not min(self.keys, seen.requests) <= (held := bench.redis_keys()) <= self.keys:
            raise Invalid(f"Redis holds {held} counts where {self.keys} are due")


@dataclasses.dataclass(frozen=True)
class RoundTrip:
    """A Redis client on the CPU of the gateways, with one command at a time."""

    name: str
    turns: int = 1

    def measure(self, bench):
        with bench.redis(), bench.redis_connection() as connection:
            os.sched_setaffinity(0, {GATEWAY_CPU})
            try:
                clients.round_trips_us(connection, WARM_UP_SECONDS)
                taken = clients.round_trips_us(connection, bench.seconds(self))
            finally:
                os.sched_setaffinity(0, {OTHER_CPU})
        return {
            "requests_per_s": len(taken) / bench.seconds(self),
            "p50_us": taken[len(taken) // 2],
            "p99_us": taken[len(taken) * 99 // 100],
        }


@dataclasses.dataclass(frozen=True)
class Micro:
    """A part of bench/micro.rs, of which the slowest case counts."""

    name: str
    turns: int = 1

    def command(self, *options):
        """Returns the command that builds and runs it with the release profile."""
        build = ["--profile", "dist", "--locked", "--manifest-path", ROOT / "Cargo.toml"]
        return ["cargo", "bench", *build, "--bench", "micro", *options]

    def measure(self, bench):
        command = ["taskset", "-c", str(GATEWAY_CPU), *self.command("--", self.name)]
        return {"median_ns": clients.read_divan(bench.processes.output(command, BUILD_SECONDS))}


class Bench:
    """Measures rows one at a time, all with the same backend."""

    def __init__(self, options, binaries, processes):
        self.options = options
        self.binaries = binaries
        self.processes = processes
        self.upstream_port, self.http2_upstream_port, self.grpc_port, self.redis_port, *self.gateway_ports = free_ports(8)
        create_files(processes.scratch)

    def run(self, rows):
        """Yields (row name, figures), or (row name, {"invalid": why}), as they are measured."""
        invalid = set()
        upstream = self.command(PEERS / "upstream.conf", self.upstream_port)
        with self.processes.server(upstream, OTHER_CPU, self.upstream_port):
            self.body = fetch(self.upstream_port, "/")[1]
            for number in range(self.options.rounds):
                for turns, neighbours in itertools.groupby(rows, key=lambda row: row.turns):
                    seen = collections.defaultdict(list)
                    for row in list(neighbours) * turns:
                        if row.name in invalid:
                            continue
                        progress(f"round {number + 1} of {self.options.rounds}: {row.name}")
                        figures = self.attempt(row)
                        seen[row.name].append(figures)
                        if "invalid" in figures:
                            invalid.add(row.name)
                    for name, parts in seen.items():
                        yield name, parts[-1] if name in invalid else medians(parts)

    def attempt(self, row):
        """Returns a row's figures; if it is invalid, those of a second attempt."""
        figures = self.measured(row)
        if "invalid" not in figures:
            return figures
        progress(f"once more, since it was invalid: {figures['invalid']}")
        return self.measured(row)

    def measured(self, row):
        try:
            return row.measure(self)
        except (Invalid, OSError, http.client.HTTPException) as reason:
            return {"invalid": str(reason) or repr(reason)}

    def seconds(self, row):
        """Returns the seconds per measurement of a row; wrk needs whole seconds."""
        return max(1, self.options.seconds // row.turns)

    def redis(self):
        address = ["--bind", "127.0.0.1", "--port", str(self.redis_port)]
        command = ["redis-server", *address, "--save", "", "--appendonly", "no"]
        return self.processes.server(command, OTHER_CPU, self.redis_port)

    def redis_connection(self):
        return socket.create_connection(("127.0.0.1", self.redis_port), 5)

    def redis_keys(self):
        """Returns the number of keys in Redis."""
        with self.redis_connection() as connection:
            connection.sendall(b"DBSIZE\r\n")
            return int(connection.recv(64)[1:])

    def gateway(self, row, port):
        """Returns the command that runs a gateway of a row."""
        store = f"redis://127.0.0.1:{self.redis_port}" if row.keys else "memory:"
        clear, tls = ("#", "") if row.scheme == "https" else ("", "#")
        http2 = "http2" if row.streams else ""
        return self.command(row.config, port, row.build, STORE=store, HTTP2=http2, CLEAR=clear, TLS=tls)

    def command(self, template, port, build="release", **values):
        """Fills a configuration in, and returns the command that runs it."""
        text = template.read_text()
        values |= {
            "LISTEN": port,
            "SERVER": self.gateway_ports[-1],
            "UPSTREAM": self.upstream_port,
            "HTTP2_UPSTREAM": self.http2_upstream_port,
            "GRPC": self.grpc_port,
            "REDIS": self.redis_port,
            "PEERS": PEERS,
            "SCRATCH": self.processes.scratch,
        }
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        config = self.processes.scratch / f"{port}-{template.name}"
        config.write_text(text)
        program = {
            ".conf": ["nginx", "-e", "stderr", "-c"],
            ".cfg": ["haproxy", "-f"],
            ".toml": [self.binaries.get(build), "run", "--config"],
            ".yaml": [self.options.envoy, "--disable-hot-restart", "--concurrency", "1", "--log-level", "error", "-c"],
        }
        return [*program[template.suffix], config]


def medians(rounds):
    """Returns the median of each figure."""
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


def create_files(folder):
    """Creates the certificate of all gateways, and the backend's large response."""
    request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-out", folder / "tls.pem", "-keyout", folder / "tls.pem.key"]
    subprocess.run([*request, *names, *files], check=True, stderr=subprocess.DEVNULL)
    (folder / "bulk").write_bytes(b"bulk" * 2**18)
    # nginx's workers have another user, if it is started as root.
    folder.chmod(0o711)


def connect(port, scheme):
    """Returns a connection for requests, over TLS 1.3 if the scheme is https."""
    if scheme == "http":
        return http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    context = ssl._create_unverified_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)


def fetch(port, path, scheme="http"):
    """Sends one request like wrk's, and returns status and body."""
    with contextlib.closing(connect(port, scheme)) as connection:
        connection.request("GET", path, headers={"X-Key": KEY})
        response = connection.getresponse()
        return response.status, response.read().decode()


def progress(text):
    print(text, file=sys.stderr, flush=True)
