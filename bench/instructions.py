#!/usr/bin/env python3
"""Count the instructions of a request in user mode, which other load doesn't change, and compare builds.

    bench/instructions.py BINARY [BINARY...]        # needs valgrind, nginx and redis-server

The gateway runs under callgrind, and answers one request after the other on one connection. Its configuration is that
of run.py, which README.md explains. `--keep` leaves the profiles for callgrind_annotate.
"""

import argparse
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

from cases import TOLLGATE
from measure import GATEWAY_CPU, OTHER_CPU, PEERS, Bench, Row
from processes import Invalid, Processes

# Connections are opened, buckets made and code paths translated before anything is counted.
WARM_UP = 300

ROWS = [
    (Row("proxied", TOLLGATE, "/"), 200),
    (Row("limit in the process", TOLLGATE, "/limit"), 200),
    (Row("limit in Redis", TOLLGATE, "/one-key", keys=1), 200),
    (Row("refusal, repeated", TOLLGATE, "/refused"), 429),
    (Row("refusal, varied", TOLLGATE, "/refused", varied="X-Request-Id"), 429),
    (Row("refusal by Redis, repeated", TOLLGATE, "/one-key-refused", keys=1), 429),
    (Row("refusal by Redis, varied", TOLLGATE, "/one-key-refused", keys=1, varied="X-Request-Id"), 429),
]


class Client:
    """A connection on which each request waits for its response."""

    def __init__(self, port, row):
        self.socket = socket.create_connection(("127.0.0.1", port), 60)
        self.row = row
        self.received = b""

    def exchange(self, number):
        """Sends a request and returns the status of its response."""
        varied = f"{self.row.varied}: {number % 10_000}\r\n" if self.row.varied else ""
        self.socket.sendall(f"GET {self.row.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Key: key-1\r\n{varied}\r\n".encode())
        while b"\r\n\r\n" not in self.received:
            self.receive()
        head, _, rest = self.received.partition(b"\r\n\r\n")
        self.received, length = rest, int(re.search(rb"(?i)\r\ncontent-length: (\d+)", head)[1])
        while len(self.received) < length:
            self.receive()
        self.received = self.received[length:]
        return int(head.split()[1])

    def receive(self):
        more = self.socket.recv(65536)
        if not more:
            raise Invalid("the gateway has closed the connection")
        self.received += more


def control(gateway, *words):
    done = subprocess.run(["callgrind_control", *words, str(gateway.pid)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Invalid(f"callgrind_control {' '.join(words)}: {done.stdout}{done.stderr}")


def instructions(bench, row, status, requests, keep):
    """Returns the instructions of a request of this row."""
    port, out = bench.gateway_ports[0], bench.processes.scratch / "callgrind.out"
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}", *bench.gateway(row, port)]
    with bench.processes.server(command, GATEWAY_CPU, port) as gateway:
        client = Client(port, row)
        for number in range(WARM_UP):
            last = client.exchange(number)
        if last != status:
            raise Invalid(f"{row.name}: answers {last} where {status} is due")
        control(gateway, "-i", "on")
        client.exchange(WARM_UP)
        control(gateway, "-z")
        for number in range(requests):
            client.exchange(WARM_UP + 1 + number)
        control(gateway, "-d")
        control(gateway, "-i", "off")
    profile = pathlib.Path(f"{out}.1")
    total = re.search(r"^(?:totals|summary): (\d+)", profile.read_text(), re.M)
    if keep:
        keep.mkdir(parents=True, exist_ok=True)
        shutil.copy(profile, keep / f"{row.name.replace(', ', '-').replace(' ', '-')}.out")
    for each in out.parent.glob("callgrind.out*"):
        each.unlink()
    if not total:
        raise Invalid(f"{row.name}: the profile has no total")
    return int(total[1]) / requests


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", metavar="BINARY", nargs="+", type=pathlib.Path, help="a build of the gateway")
    parser.add_argument("--requests", type=int, default=1000, help="requests of each row (%(default)s)")
    parser.add_argument("--only", default="", help="the rows whose names contain this")
    parser.add_argument("--keep", metavar="DIR", type=pathlib.Path, help="leave the last binary's profiles here")
    options = parser.parse_args()
    options.envoy = None
    with tempfile.TemporaryDirectory() as scratch, Processes(pathlib.Path(scratch)) as processes:
        benches = [Bench(options, {"release": binary.resolve()}, processes) for binary in options.binaries]
        upstream = benches[0].command(PEERS / "upstream.conf", benches[0].upstream_port)
        for other in benches[1:]:
            other.upstream_port = benches[0].upstream_port
        with processes.server(upstream, OTHER_CPU, benches[0].upstream_port):
            for row, status in ROWS:
                if options.only not in row.name:
                    continue
                counts = []
                for bench in benches:
                    with bench.redis():
                        counts.append(instructions(bench, row, status, options.requests, options.keep))
                change = f"  {counts[-1] / counts[0] - 1:+.1%}" if len(counts) > 1 else ""
                print(f"{row.name:28}" + "".join(f"{count:10,.0f}" for count in counts) + change, flush=True)


if __name__ == "__main__":
    try:
        main()
    except Invalid as reason:
        sys.exit(f"{sys.argv[0]}: {reason}")
