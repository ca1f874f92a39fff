"""Rows of TLS connections: how many are opened, and what an idle one holds."""

import contextlib
import dataclasses
import json
import subprocess
import sys
import time

from clients import Load
from measure import BENCH, Row
from processes import Invalid, memory_mib

CLIENT = [sys.executable, BENCH / "tls_client.py"]
# The seconds after which the gateways have nothing more to do for connections that were opened.
SETTLE_SECONDS = 1


@dataclasses.dataclass(frozen=True)
class Handshakes(Row):
    """New connections, with one request each."""

    scheme: str = "https"
    # `full`, or `resumed` with the ticket of an earlier connection.
    mode: str = "full"

    def load(self, bench, ports, seconds):
        command = [*CLIENT, self.mode, str(ports[0]), str(seconds)]
        return Load(not_2xx=0, **json.loads(bench.processes.output(command, seconds + 30)))


@dataclasses.dataclass(frozen=True)
class Idle(Row):
    """The memory of connections that have had one request each."""

    scheme: str = "https"
    connections: int = 10_000

    def measure(self, bench):
        with contextlib.ExitStack() as stack:
            ports, [gateway] = self.start(bench, stack)
            self.check_answers(bench, ports)
            before = memory_mib(gateway, "VmRSS")
            command = [*CLIENT, "idle", str(ports[0]), str(self.connections)]
            client = bench.processes.start(command, stdout=subprocess.PIPE, text=True)
            try:
                said = client.stdout.readline().strip()
                if said != "open":
                    raise Invalid(f"connections fail: {said}")
                time.sleep(SETTLE_SECONDS)
                held = memory_mib(gateway, "VmRSS") - before
            finally:
                bench.processes.stop(client)
            return {"connection_bytes": held * 2**20 / self.connections}
