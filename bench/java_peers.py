"""Rows of peers in Java, and how many requests of a burst each limiter admits."""

import contextlib
import dataclasses

import clients
from measure import BENCH, GATEWAY_CPU, Row

JAVA = BENCH / "java"
GATEWAY, SERVICE = "bench.Gateway", "bench.Service"
BUILD = ["mvn", "-q", "-B", "-f", JAVA / "pom.xml", "package"]

# The seconds that the JVM has for compiling what the load uses.
WARM_UP_SECONDS = 15
# The seconds of a burst. It is shorter than the window of its limit, which has 100 permits.
BURST_SECONDS = 5


@dataclasses.dataclass(frozen=True)
class Java(Row):
    """A program of bench/java under load. Its configuration is its main class."""

    keys: int = 1
    warm_up: int = WARM_UP_SECONDS

    def start(self, bench, stack):
        port, redis = bench.gateway_ports[0], bench.redis_port
        arguments = {
            GATEWAY: [
                f"--server.port={port}",
                f"--upstream={bench.upstream_port}",
                f"--spring.data.redis.port={redis}",
            ],
            SERVICE: [port, redis, bench.body],
        }[self.config]
        classes = f"{JAVA}/target/bench.jar:{JAVA}/target/lib/*"
        command = ["java", "-Xmx1g", "-cp", classes, self.config, *map(str, arguments)]
        return [port], [stack.enter_context(bench.processes.server(command, GATEWAY_CPU, port))]

    def check_keys(self, bench, seen):
        """Checks nothing: each limiter has several keys in Redis for one of ours."""


@dataclasses.dataclass(frozen=True)
class Burst:
    """A burst from one client after an idle time, shorter than the window: what a limit of 100 admits of it."""

    name: str
    row: Row
    turns: int = 2

    def measure(self, bench):
        with contextlib.ExitStack() as stack:
            stack.enter_context(bench.redis())
            ports, _ = self.row.start(bench, stack)
            self.row.load(bench, ports, self.row.warm_up)
            seen = dataclasses.replace(self.row, path="/burst").load(bench, ports, BURST_SECONDS)
            return {"admitted": seen.requests - seen.not_2xx}
