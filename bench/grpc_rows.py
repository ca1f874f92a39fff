"""Rows of gRPC streams, through a gateway to a service in Python."""

import dataclasses
import json

from clients import Load
from measure import BENCH, OTHER_CPU, Row

ECHO = BENCH / "grpc_echo.py"


@dataclasses.dataclass(frozen=True)
class Grpc(Row):
    """Messages on streams, one at a time on each, over HTTP/2 without TLS on both sides."""

    streams: int = 8

    def start(self, bench, stack):
        service = [bench.options.grpc, ECHO, "serve", str(bench.grpc_port)]
        stack.enter_context(bench.processes.server(service, OTHER_CPU, bench.grpc_port))
        return super().start(bench, stack)

    def check_answers(self, bench, ports):
        """Checks nothing: the client compares each message."""

    def load(self, bench, ports, seconds):
        command = [bench.options.grpc, ECHO, "load", str(ports[0]), str(self.connections), str(seconds)]
        return Load(not_2xx=0, **json.loads(bench.processes.output(command, seconds + 30)))
