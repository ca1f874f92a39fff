#!/usr/bin/env python3
"""Loads a build that counts what it does, so that scripts/dist.sh can optimize what is common.

    bench/train.py BINARY

The load is no row of run.py: training/mix.lua mixes routes, keys, refusals and heads. It goes to four gateways in turn,
which count in the process or in Redis, and have clients with or without TLS. It takes about a minute. Nothing is
measured, and no CPU is needed alone.
"""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import urllib.request

from processes import Invalid, Processes, free_ports

TRAINING = pathlib.Path(__file__).resolve().parent / "training"
ROOT = TRAINING.parent.parent
LOG_LINES = 100_000
# The time that a gateway has for its counts when it ends.
WRITE_SECONDS = 120


class Training:
    """The servers around the gateway, and what loads it."""

    def __init__(self, binary, processes):
        self.binary = binary
        self.processes = processes
        self.scratch = processes.scratch
        self.cpus = ",".join(map(str, os.sched_getaffinity(0)))
        names = ["LISTEN", "ADMIN", "DECISIONS", "REDIS", "BACKEND", "BACKEND_TLS", "BACKEND_HTTP2"]
        self.ports = dict(zip(names, free_ports(len(names))))

    def run(self):
        (self.scratch / "large.txt").write_text("All work and no play makes a long file.\n" * 2500)
        backend = ["nginx", "-e", "stderr", "-c", self.fill("backend.conf")]
        redis = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.ports["REDIS"]), "--save", ""]
        with self.server(backend, "BACKEND"), self.server(redis, "REDIS"):
            for store in ["memory:", f"redis://127.0.0.1:{self.ports['REDIS']}"]:
                for scheme in ["http", "https"]:
                    self.load_gateway(store, scheme)
        self.simulate()

    def load_gateway(self, store, scheme):
        config = self.fill(
            "gateway.toml",
            STORE=store,
            TLS="" if scheme == "http" else 'tls = { certs = [{ cert = "@TESTS@/tls/gateway.pem", key = "@TESTS@/tls/gateway.key" }] }',
            ACCESS_LOG="" if scheme == "http" else '[access_log]\npath = "@SCRATCH@/access.log"\nformat = "json"',
        )
        with self.server([self.binary, "run", "--config", config], "LISTEN") as gateway:
            ended = threading.Event()
            scraper = threading.Thread(target=self.scrape, args=[ended])
            scraper.start()
            try:
                self.load(f"{scheme}://127.0.0.1:{self.ports['LISTEN']}")
            finally:
                ended.set()
                scraper.join()
        if gateway.returncode != 0:
            raise Invalid(f"the counts of the gateway are missing: its exit status is {gateway.returncode}")

    def load(self, gateway):
        decisions = f"http://127.0.0.1:{self.ports['DECISIONS']}"
        self.mix(gateway, connections=32, seconds=4)
        self.mix(gateway, connections=1, seconds=1)
        self.mix(decisions, connections=16, seconds=2, prefix="/check/envoy")
        # The same head again and again, and a connection for each request.
        self.clients("wrk", "-t1", "-c16", "-d1s", f"{gateway}/login")
        self.clients("wrk", "-t1", "-c16", "-d1s", "-H", "Connection: close", f"{gateway}/status")
        paths = self.file("paths", "\n".join(f"{gateway}{path}" for path in http2_paths()).encode())
        order = self.file("order", b"x" * 300)
        call = self.file("call", grpc_call("training", {"api_key": "gold"}))
        self.clients("h2load", "-t1", "-c8", "-m8", "-D2", "-H", "x-api-key: key-1", "-H", "x-tenant: tenant-1", "-i", paths)
        self.clients("h2load", "-t1", "-c32", "-m1", "-D1", "-H", "x-api-key: key-2", "-i", paths)
        self.clients("h2load", "-t1", "-c4", "-m4", "-D1", "-d", order, f"{gateway}/v1/orders")
        grpc = ["-H", "content-type: application/grpc", "-H", "te: trailers", "-d", call]
        self.clients("h2load", "-t1", "-c4", "-m8", "-D1", *grpc, f"{decisions}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit")

    def mix(self, server, connections, seconds, prefix=""):
        self.clients("wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", TRAINING / "mix.lua", server, "--", prefix)

    def clients(self, *command):
        """Runs clients. Raises Invalid if they got no responses."""
        report = self.processes.output(command, 60)
        if "\n  0 requests in" in report or ", 0 done," in report:
            raise Invalid(f"{' '.join(map(str, command))} got no responses: {report}")

    def scrape(self, ended):
        while not ended.wait(0.2):
            urllib.request.urlopen(f"http://127.0.0.1:{self.ports['ADMIN']}/metrics", timeout=10).read()

    def simulate(self):
        """Replays access logs."""
        for name, line in {"combined": COMBINED, "json": JSON}.items():
            lines = (line(f"10.0.{at % 7}.{at * 31 % 251}", at // 3000 % 60, at // 50 % 60, at) for at in range(LOG_LINES))
            log = self.file(name, "".join(lines).encode())
            self.processes.output([self.binary, "simulate", log, "--config", ROOT / "gateway.toml"], 120)

    def server(self, command, port):
        return self.processes.server(command, self.cpus, self.ports[port])

    def fill(self, template, **values):
        """Returns a configuration with ports, folders and further values filled in."""
        text = (TRAINING / template).read_text()
        for name, value in (values | self.ports | {"SCRATCH": self.scratch, "TESTS": ROOT / "tests"}).items():
            text = text.replace(f"@{name}@", str(value))
        return self.file(template, text.encode())

    def file(self, name, content):
        path = self.scratch / name
        path.write_bytes(content)
        return path


def http2_paths():
    for number in range(200):
        yield from [f"/v1/orders/{number}?page=2", f"/v1/users/{number}/items/7", f"/secure/{number}", f"/v1/search?q=tea{number}"]
        yield from ["/status", "/login", "/nothing/here"] if number % 4 == 0 else []
    yield from ["/files/1.txt", "/stream/1"]


def grpc_call(domain, entries):
    """Returns a RateLimitRequest of Envoy's protocol with one descriptor, as gRPC frames it."""

    def field(number, value):
        return bytes([number << 3 | 2, len(value)]) + value

    descriptor = b"".join(field(1, field(1, key.encode()) + field(2, value.encode())) for key, value in entries.items())
    message = field(1, domain.encode()) + field(2, descriptor)
    return b"\0" + len(message).to_bytes(4, "big") + message


def COMBINED(client, minute, second, at):
    return f'{client} - - [01/Jan/2026:00:{minute:02}:{second:02} +0000] "GET /v1/orders/{at % 1000} HTTP/1.1" 200 512 "-" "curl/8"\n'


def JSON(client, minute, second, at):
    return (
        f'{{"time":"2026-01-01T00:{minute:02}:{second:02}.{at % 1000:03}Z","client":"{client}","method":"GET",'
        f'"target":"/v1/orders/{at % 1000}","protocol":"HTTP/1.1","status":200,"bytes":512,"duration_ms":1.5}}\n'
    )


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))
    with tempfile.TemporaryDirectory(prefix="tollgate-") as scratch, Processes(pathlib.Path(scratch), WRITE_SECONDS) as processes:
        Training(pathlib.Path(sys.argv[1]).resolve(), processes).run()


if __name__ == "__main__":
    try:
        main()
    except Invalid as failure:
        sys.exit(str(failure))
