"""Rows of rate limit services, which an Envoy asks about each request."""

import dataclasses

from measure import BENCH, GATEWAY_CPU, OTHER_CPU, PEERS, Row, fetch
from processes import Invalid

ENVOY = PEERS / "envoy.yaml"
DECISIONS = BENCH / "decisions.toml"
# The folder of limits, in the YAML of envoyproxy/ratelimit, which both services read.
LIMITS = PEERS / "ratelimit"
# The requests that Envoy lets through on `/few` before it answers 429.
FEW = 3


@dataclasses.dataclass(frozen=True)
class Service(Row):
    """A rate limit service on the CPU of the gateways. Envoy shares the other one with load, backend and Redis."""

    keys: int = 1

    def start(self, bench, stack):
        service, envoy, *_ = bench.gateway_ports
        processes = bench.processes
        running = stack.enter_context(processes.server(self.command(bench, service), GATEWAY_CPU, service))
        proxy = bench.command(ENVOY, envoy, SERVICE=service)
        stack.enter_context(processes.server(proxy, OTHER_CPU, envoy))
        return [envoy], [running]

    def command(self, bench, port):
        """Returns the command that runs the service."""
        if self.config == DECISIONS:
            return bench.command(self.config, port)
        _, _, http, debug = bench.gateway_ports
        settings = {
            "RUNTIME_ROOT": BENCH,
            "RUNTIME_SUBDIRECTORY": PEERS.name,
            "RUNTIME_APPDIRECTORY": LIMITS.name,
            "RUNTIME_WATCH_ROOT": "false",
            "USE_STATSD": "false",
            "LOG_LEVEL": "error",
            "REDIS_SOCKET_TYPE": "tcp",
            "REDIS_URL": f"127.0.0.1:{bench.redis_port}",
            "HOST": "127.0.0.1",
            "PORT": http,
            "GRPC_HOST": "127.0.0.1",
            "GRPC_PORT": port,
            "DEBUG_HOST": "127.0.0.1",
            "DEBUG_PORT": debug,
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), bench.options.reference]

    def check_answers(self, bench, ports):
        """Checks that the service admits the row's requests, and that Envoy gets its refusals."""
        self.check_answer(bench, ports[0], 200)
        for number in range(FEW + 1):
            expected, (status, _) = 429 if number == FEW else 200, fetch(ports[0], "/few")
            if status != expected:
                raise Invalid(f"answers {status} to request {number + 1} of /few, where {expected} is due")

    def check_keys(self, bench, seen):
        """Checks nothing: the service's keys name windows, too."""


@dataclasses.dataclass(frozen=True)
class Check(Row):
    """Questions by HTTP to the listener for other proxies, as Envoy's ext_authz sends them, all refused."""

    def start(self, bench, stack):
        _, listener, *_ = bench.gateway_ports
        command = bench.command(self.config, listener)
        return [listener], [stack.enter_context(bench.processes.server(command, GATEWAY_CPU, listener))]

    def check_answer(self, bench, port, expected):
        """Checks the status: an admission has no body."""
        status, _ = fetch(port, self.path)
        if status != expected:
            raise Invalid(f"answers {status} where {expected} is due")
