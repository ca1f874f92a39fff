"""One row of the table measured: its servers started, its answers checked, its CPU counted under load."""

import contextlib
import dataclasses
import http.client
import pathlib
import re
import socket
import sys

from processes import Invalid, cpu_us, free_ports, resident_mib

BENCH = pathlib.Path(__file__).resolve().parent
PEERS = BENCH / "peers"

GATEWAY_CPU, OTHER_CPU = 0, 1
WARM_UP_SECONDS = 1

# The share of requests in a measurement that may be answered otherwise than the row demands.
TOLERATED_SHARE = 0.005


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: a gateway's configuration, and the path that makes it do one kind of work."""

    name: str
    config: pathlib.Path
    path: str = "/"
    redis: bool = False
    many_keys: bool = False
    # How many requests pass before all others are refused; None: all pass.
    admits: int | None = None


def fetch(port, path):
    """One request as wrk sends them: status and body."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
        connection.request("GET", path, headers={"X-Key": "one"})
        response = connection.getresponse()
        return response.status, response.read()


def redis_keys(port):
    """The number of keys in Redis."""
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"DBSIZE\r\n")
        return int(connection.recv(64)[1:])


@dataclasses.dataclass(frozen=True)
class Load:
    """What wrk saw."""

    requests: int
    per_second: float
    not_2xx: int
    p50_us: float
    p99_us: float

    @classmethod
    def parse(cls, report):
        """Reads wrk's report; Invalid if connections failed or nothing was answered."""
        failed = re.search(r"Socket errors: .*|\b0 requests in", report)
        if failed:
            raise Invalid(failed[0])
        not_2xx = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
        return cls(
            requests=int(re.search(r"(\d+) requests in", report)[1]),
            per_second=float(re.search(r"Requests/sec:\s+([\d.]+)", report)[1]),
            not_2xx=int(not_2xx[1]) if not_2xx else 0,
            p50_us=latency_us(report, 50),
            p99_us=latency_us(report, 99),
        )


def latency_us(report, percent):
    value, unit = re.search(rf"\s{percent}%\s+([\d.]+)(us|ms|s)", report).groups()
    return float(value) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


class Bench:
    """Measures rows one at a time, against one backend that stays."""

    def __init__(self, options, binary, processes):
        self.options = options
        self.binary = binary
        self.processes = processes
        self.upstream_port, self.gateway_port, self.redis_port = free_ports(3)

    def run(self, rows):
        """Yields (row name, figures), or (row name, {"invalid": why}), as they are measured."""
        invalid = set()
        upstream = self.command(PEERS / "upstream.conf", self.upstream_port)
        with self.processes.server(upstream, OTHER_CPU, self.upstream_port):
            self.body = fetch(self.upstream_port, "/")[1]
            for number in range(self.options.rounds):
                for row in rows:
                    if row.name in invalid:
                        continue
                    progress(f"round {number + 1} of {self.options.rounds}: {row.name}")
                    try:
                        yield row.name, self.measure(row)
                    except (Invalid, OSError, http.client.HTTPException) as reason:
                        invalid.add(row.name)
                        yield row.name, {"invalid": str(reason) or repr(reason)}

    def measure(self, row):
        """Starts what the row needs, proves that it works, and measures it under load."""
        with contextlib.ExitStack() as stack:
            redis = stack.enter_context(self.redis()) if row.redis else None
            store = f"redis://127.0.0.1:{self.redis_port}" if row.redis else "memory:"
            command = self.command(row.config, self.gateway_port, store)
            gateway = stack.enter_context(self.processes.server(command, GATEWAY_CPU, self.gateway_port))
            self.check_answers(row)
            self.load(row, WARM_UP_SECONDS)
            servers = [gateway, redis] if redis else [gateway]
            before = [cpu_us(server) for server in servers]
            load = self.load(row, self.options.seconds)
            used = [cpu_us(server) - start for server, start in zip(servers, before)]
            self.check_load(row, load)
            return {
                "requests_per_s": load.per_second,
                "gateway_us": used[0] / load.requests,
                "redis_us": sum(used[1:]) / load.requests,
                "total_us": sum(used) / load.requests,
                "p50_us": load.p50_us,
                "p99_us": load.p99_us,
                "not_2xx": load.not_2xx / load.requests,
                "resident_mib": resident_mib(gateway),
            }

    def check_answers(self, row):
        """A row that admits must relay the backend's body; one that refuses, exactly after what it admits."""
        admitted = 1 if row.admits is None else row.admits
        for _ in range(admitted):
            self.check_answer(row, 200)
        if row.admits is not None:
            self.check_answer(row, 429)

    def check_answer(self, row, expected):
        status, body = fetch(self.gateway_port, row.path)
        if status != expected:
            raise Invalid(f"answers {status} where {expected} is due")
        if status == 200 and body != self.body:
            raise Invalid("answers 200 with another body than the backend's")

    def check_load(self, row, load):
        """The load must have met the same answers, and Redis must have counted."""
        wrong = load.not_2xx if row.admits is None else load.requests - load.not_2xx
        if wrong > load.requests * TOLERATED_SHARE:
            raise Invalid(f"{wrong} of {load.requests} answers were {'not ' if row.admits is None else ''}2xx")
        if row.redis and redis_keys(self.redis_port) == 0:
            raise Invalid("Redis holds no count")
        if row.admits is not None:
            self.check_answer(row, 429)

    def load(self, row, seconds):
        """Loads the gateway with wrk."""
        command = ["wrk", "-t1", f"-c{self.options.connections}", f"-d{seconds}s", "--latency"]
        command += ["-s", BENCH / "many-keys.lua"] if row.many_keys else ["-H", "X-Key: one"]
        command.append(f"http://127.0.0.1:{self.gateway_port}{row.path}")
        return Load.parse(self.processes.output(command, seconds + 30))

    def redis(self):
        address = ["--bind", "127.0.0.1", "--port", str(self.redis_port)]
        command = ["redis-server", *address, "--save", "", "--appendonly", "no"]
        return self.processes.server(command, OTHER_CPU, self.redis_port)

    def command(self, template, port, store=""):
        """Fills a configuration in, and returns the command that runs it."""
        text = template.read_text()
        values = {
            "LISTEN": port,
            "UPSTREAM": self.upstream_port,
            "REDIS": self.redis_port,
            "STORE": store,
            "PEERS": PEERS,
            "SCRATCH": self.processes.scratch,
        }
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        config = self.processes.scratch / template.name
        config.write_text(text)
        program = {
            ".conf": ["nginx", "-e", "stderr", "-c"],
            ".cfg": ["haproxy", "-f"],
            ".toml": [self.binary, "run", "--config"],
        }
        return [*program[template.suffix], config]


def progress(text):
    print(text, file=sys.stderr, flush=True)
