"""The rows to measure, and their requirements."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable

from grpc_rows import Grpc
from java_peers import GATEWAY, SERVICE, Burst, Java
from measure import BENCH, MANY_KEYS, PEERS, Micro, RoundTrip, Row
from services import DECISIONS, LIMITS, Check, Service
from tls_rows import Handshakes, Idle

NGINX = PEERS / "nginx.conf"
OPENRESTY = PEERS / "openresty.conf"
HAPROXY = PEERS / "haproxy-proxy.cfg"
TOLLGATE = BENCH / "tollgate.toml"
PROXIES = {"nginx": NGINX, "haproxy": HAPROXY, "tollgate": TOLLGATE}

ONE_KEY = Row("tollgate-redis-one-key", TOLLGATE, "/one-key", keys=1)
SPRING_ONE_KEY = Java("spring-one-key", GATEWAY, "/one-key")
REDISSON_ONE_KEY = Java("redisson-one-key", SERVICE, "/one-key")


def of_each(kind, row=Row, proxies=PROXIES, **work):
    """Returns the rows of the same work for several proxies, each measured in one go."""
    return [row(f"{name}-{kind}", PROXIES[name], turns=1, **work) for name in proxies]


# Rows that are compared stand together, so that little time passes between their measurements. Rows whose difference
# is computed alternate; otherwise a machine that is slower for some seconds would look like a difference.
RELEASE_ROWS = [
    Row("haproxy-tcp", PEERS / "haproxy-tcp.cfg"),
    Row("nginx-proxy", NGINX),
    Row("tollgate-proxy", TOLLGATE),
    Row("nginx-limit", NGINX, "/limit"),
    Row("haproxy-limit", PEERS / "haproxy.cfg"),
    Row("tollgate-memory", TOLLGATE, "/limit"),
    Row("openresty-refused", OPENRESTY, "/one-key-refused", keys=1, admits=100),
    Row("tollgate-redis-refused", TOLLGATE, "/one-key-refused", keys=1, admits=100),
    Row("nginx-refused", NGINX, "/refused", admits=1),
    Row("nginx-refused-varied", NGINX, "/refused", admits=1, varied="X-Request-Id"),
    Row("tollgate-redis-refused-varied", TOLLGATE, "/one-key-refused", keys=1, admits=100, varied="X-Request-Id"),
    Row("tollgate-memory-refused", TOLLGATE, "/refused", admits=1),
    Row("openresty-one-key", OPENRESTY, "/one-key", keys=1),
    ONE_KEY,
    Row("tollgate-redis-two-limits", TOLLGATE, "/two-limits", keys=2),
    Row("tollgate-redis-two-gateways", TOLLGATE, "/one-key", keys=1, gateways=2),
    Row("openresty-many-keys", OPENRESTY, "/many-keys", keys=MANY_KEYS, varied="X-Key"),
    Row("tollgate-redis-many-keys", TOLLGATE, "/many-keys", keys=MANY_KEYS, varied="X-Key"),
    Row("nginx-http2", NGINX, streams=1),
    Row("tollgate-http2", TOLLGATE, streams=1),
    Row("nginx-http2-streams", NGINX, connections=8, streams=8),
    Row("tollgate-http2-streams", TOLLGATE, connections=8, streams=8),
    Row("direct-one-connection", None, gateways=0, connections=1, turns=4),
    Row("nginx-one-connection", NGINX, connections=1, turns=4),
    Row("tollgate-one-connection", TOLLGATE, connections=1, turns=4),
    Row("tollgate-redis-one-connection", TOLLGATE, "/one-key", keys=1, connections=1, turns=4),
    RoundTrip("redis-round-trip", turns=4),
    Row("nginx-1000-connections", NGINX, connections=1000),
    Row("tollgate-1000-connections", TOLLGATE, connections=1000),
    *of_each("tls", scheme="https"),
    *of_each("tls-bulk", path="/bulk", connections=8, scheme="https"),
    *of_each("tls-full", Handshakes),
    *of_each("tls-resumed", Handshakes, mode="resumed"),
    *of_each("tls-http2", connections=8, streams=8, scheme="https"),
    *of_each("tls-idle", Idle),
    *of_each("http2-upstream", path="/http2", proxies=["haproxy", "tollgate"]),
    *of_each("grpc", Grpc),
    Check("tollgate-check-refused", DECISIONS, "/check/envoy/one-key-refused", keys=1, admits=100),
    Service("envoy-reference-one-key", LIMITS, "/one-key"),
    Service("envoy-tollgate-one-key", DECISIONS, "/one-key"),
    Service("envoy-reference-many-keys", LIMITS, "/one-key", varied="X-Key"),
    Service("envoy-tollgate-many-keys", DECISIONS, "/one-key", varied="X-Key"),
    Service("envoy-reference-64-descriptors", LIMITS, "/64-descriptors"),
    Service("envoy-tollgate-64-descriptors", DECISIONS, "/64-descriptors"),
    Service("envoy-no-limit-one-connection", DECISIONS, "/", connections=1, turns=4),
    Service("envoy-reference-one-connection", LIMITS, "/one-key", connections=1, turns=4),
    Service("envoy-tollgate-one-connection", DECISIONS, "/one-key", connections=1, turns=4),
    Service("envoy-tollgate-64-descriptors-one-connection", DECISIONS, "/64-descriptors", connections=1, turns=4),
    SPRING_ONE_KEY,
    REDISSON_ONE_KEY,
    Java("spring-many-keys", GATEWAY, "/one-key", varied="X-Key"),
    Java("redisson-many-keys", SERVICE, "/one-key", varied="X-Key"),
    Burst("tollgate-burst", ONE_KEY),
    Burst("spring-burst", SPRING_ONE_KEY),
    Burst("redisson-burst", REDISSON_ONE_KEY),
    Micro("routing"),
]


def of_dist(name):
    """Returns the name of the dist build's row for one of the release build."""
    return name.replace("tollgate-", "dist-")


def builds_of(row):
    """Returns a row for each build of Tollgate, if it measures the gateway as a proxy; otherwise the row itself."""
    if not (isinstance(row, Row) and row.config == TOLLGATE):
        return [row]
    return [row, dataclasses.replace(row, name=of_dist(row.name), build="dist")]


ROWS = list(itertools.chain.from_iterable(map(builds_of, RELEASE_ROWS)))


def of(figure):
    """Returns a figure of one row."""
    return lambda row: row[figure]


def cpu(row, peer):
    """Returns the ratio of CPU times to a peer's, gateway plus Redis."""
    return row["total_us"] / peer["total_us"]


def cpu_of_better(row, *peers):
    """Returns the ratio of CPU times to that of the better peer."""
    return row["total_us"] / min(peer["total_us"] for peer in peers)


def added(row, without):
    """Returns the latency added at one connection, compared with the backend alone or the proxy alone."""
    return row["p50_us"] - without["p50_us"]


def added_beside(row, peer, direct):
    """Returns the ratio of added latencies; infinite if the peer's is too small to measure."""
    of_peer = added(peer, direct)
    return added(row, direct) / of_peer if of_peer > 0 else math.inf


def added_beyond(row, without, round_trip):
    """Returns the latency added at one connection, beyond one round trip to Redis."""
    return added(row, without) - round_trip["p50_us"]


@dataclasses.dataclass(frozen=True)
class Case:
    """A figure of a round, with its required maximum and its goal."""

    text: str
    rows: tuple[str, ...]
    figure: Callable[..., float]
    required: float | None = None
    goal: float | None = None
    unit: str = ""
    # The required maximum for the dist build; None if it is the same.
    dist: float | None = None

    def of_dist(self):
        """Returns the case for the dist build."""
        required = self.required if self.dist is None else self.dist
        rows = tuple(map(of_dist, self.rows))
        return dataclasses.replace(self, text=f"dist build: {self.text}", rows=rows, required=required)

    def is_measured(self, results):
        return all(row in results for row in self.rows)

    def judge(self, results):
        """Returns the verdict."""
        if any(invalidity(results[row]) for row in self.rows):
            return Judgement(self, None)
        rounds = zip(*(results[row] for row in self.rows))
        return Judgement(self, [self.figure(*figures) for figures in rounds])


@dataclasses.dataclass(frozen=True)
class Judgement:
    """A case with its figures, one per round; none if a row is invalid."""

    case: Case
    figures: list[float] | None

    @property
    def median(self):
        return statistics.median(self.figures) if self.figures else math.inf

    @property
    def verdict(self):
        """Returns the verdict in a word or two; empty without a requirement."""
        if self.case.required is None:
            return ""
        if not self.figures:
            return "invalid"
        if self.median > self.case.required:
            return "MISSED"
        return "goal" if self.case.goal is not None and self.median <= self.case.goal else "met"

    @property
    def holds(self):
        return self.verdict not in ("invalid", "MISSED")


def of_all(kind):
    """Returns the names of the rows of the same work: Tollgate's first."""
    return tuple(f"{name}-{kind}" for name in reversed(PROXIES))


def invalidity(rounds):
    """Returns why a row is invalid, or None."""
    return next((figures["invalid"] for figures in rounds if "invalid" in figures), None)


RELEASE_CASES = [
    Case("plain proxy, CPU of nginx's", ("tollgate-proxy", "nginx-proxy"), cpu, 1.15, 1.0, dist=1.05),
    Case(
        "limit in the process, CPU of nginx limit_req's",
        ("tollgate-memory", "nginx-limit"),
        cpu,
        1.22,
        1.0,
        dist=1.1,
    ),
    Case(
        "Redis, one key, CPU of OpenResty's",
        ("tollgate-redis-one-key", "openresty-one-key"),
        cpu,
        0.48,
        0.4,
        dist=0.43,
    ),
    Case(
        "Redis, 10,000 keys, CPU of OpenResty's",
        ("tollgate-redis-many-keys", "openresty-many-keys"),
        cpu,
        0.68,
        0.5,
        dist=0.56,
    ),
    Case(
        "refusals of identical heads, CPU of nginx limit_req's",
        ("tollgate-redis-refused", "nginx-refused"),
        cpu,
        0.9,
        0.75,
        dist=0.8,
    ),
    Case(
        "refusals of varied heads, CPU of nginx's",
        ("tollgate-redis-refused-varied", "nginx-refused-varied"),
        cpu,
        1.0,
    ),
    Case("refusals, CPU of Redis", ("tollgate-redis-refused",), of("redis_us"), 0.2, unit="µs"),
    Case("two limits, CPU of one limit's", ("tollgate-redis-two-limits", "tollgate-redis-one-key"), cpu, 1.3, 1.2),
    Case(
        "one connection, added p50, of nginx's",
        ("tollgate-one-connection", "nginx-one-connection", "direct-one-connection"),
        added_beside,
        1.3,
        1.0,
    ),
    Case(
        "one connection, p50 added by a decision in Redis, beyond a round trip",
        ("tollgate-redis-one-connection", "tollgate-one-connection", "redis-round-trip"),
        added_beyond,
        60,
        30,
        "µs",
    ),
    Case("HTTP/2 in, CPU of nginx's", ("tollgate-http2", "nginx-http2"), cpu, 1.5, 1.1),
    Case("the same, 8 streams a connection", ("tollgate-http2-streams", "nginx-http2-streams"), cpu, 1.5, 1.1),
    *(
        Case(f"{text}, CPU of the better of nginx and HAProxy", of_all(kind), cpu_of_better, 1.1)
        for kind, text in [
            ("tls", "TLS"),
            ("tls-bulk", "TLS, 1 MiB"),
            ("tls-full", "TLS, a new connection"),
            ("tls-resumed", "TLS, a resumed connection"),
            ("tls-http2", "HTTP/2 over TLS"),
            ("grpc", "a message on a gRPC stream"),
        ]
    ),
    Case("HTTP/2 to the backend, CPU of HAProxy's", ("tollgate-http2-upstream", "haproxy-http2-upstream"), cpu, 1.1),
    *(
        Case(f"an idle TLS connection of 10,000, {name}", (f"{name}-tls-idle",), of("connection_bytes"), unit="bytes")
        for name in PROXIES
    ),
    Case("memory with 1,000 connections", ("tollgate-1000-connections",), of("peak_mib"), 60, 40, "MiB"),
    Case("routing among 1,000 routes, no allocation", ("routing",), of("median_ns"), 500, 300, "ns"),
    Case(
        "one connection, p50 added by proxy and decision, beyond a round trip",
        ("tollgate-redis-one-connection", "direct-one-connection", "redis-round-trip"),
        added_beyond,
        unit="µs",
    ),
    Case("plain proxy, CPU of HAProxy's in tcp mode", ("tollgate-proxy", "haproxy-tcp"), cpu),
    Case("nginx's, of HAProxy's in tcp mode", ("nginx-proxy", "haproxy-tcp"), cpu),
    Case("limit in the process, CPU of HAProxy's", ("tollgate-memory", "haproxy-limit"), cpu),
    Case("refusals in the process, CPU of nginx's", ("tollgate-memory-refused", "nginx-refused"), cpu),
    Case("refusals, CPU of OpenResty's", ("tollgate-redis-refused", "openresty-refused"), cpu),
    Case("/check, CPU of a refusal of the gateway's own", ("tollgate-check-refused", "tollgate-redis-refused"), cpu, 1.3),
    Case(
        "behind Envoy, one key, CPU of envoyproxy/ratelimit's",
        ("envoy-tollgate-one-key", "envoy-reference-one-key"),
        cpu,
        0.5,
        0.3,
    ),
    Case(
        "behind Envoy, 10,000 keys, CPU of envoyproxy/ratelimit's",
        ("envoy-tollgate-many-keys", "envoy-reference-many-keys"),
        cpu,
        0.5,
        0.3,
    ),
    Case(
        "behind Envoy, 64 descriptors, CPU of one's",
        ("envoy-tollgate-64-descriptors", "envoy-tollgate-one-key"),
        cpu,
        4,
    ),
    Case(
        "behind Envoy, one connection, 64 descriptors, CPU of one's",
        ("envoy-tollgate-64-descriptors-one-connection", "envoy-tollgate-one-connection"),
        cpu,
        4,
    ),
    Case(
        "behind Envoy, 64 descriptors, CPU of envoyproxy/ratelimit's",
        ("envoy-tollgate-64-descriptors", "envoy-reference-64-descriptors"),
        cpu,
    ),
    Case(
        "behind Envoy, one connection, added p50, of envoyproxy/ratelimit's",
        ("envoy-tollgate-one-connection", "envoy-reference-one-connection", "envoy-no-limit-one-connection"),
        added_beside,
        1.0,
    ),
    Case("one key, CPU of Spring Cloud Gateway's", ("tollgate-redis-one-key", "spring-one-key"), cpu),
    Case("10,000 keys, CPU of Spring Cloud Gateway's", ("tollgate-redis-many-keys", "spring-many-keys"), cpu),
    Case("one key, CPU of a Java service with RRateLimiter", ("tollgate-redis-one-key", "redisson-one-key"), cpu),
    Case("10,000 keys, CPU of that service", ("tollgate-redis-many-keys", "redisson-many-keys"), cpu),
    Case("admitted of a burst by a limit of 100", ("tollgate-burst",), of("admitted"), 100),
    Case("the same, by Spring Cloud Gateway", ("spring-burst",), of("admitted")),
    Case("the same, by RRateLimiter", ("redisson-burst",), of("admitted")),
    Case("two gateways, CPU of one's", ("tollgate-redis-two-gateways", "tollgate-redis-one-key"), cpu),
]

DIST_CASES = [case.of_dist() for case in RELEASE_CASES if any(row.startswith("tollgate-") for row in case.rows)]
CASES = RELEASE_CASES + [case for case in DIST_CASES if set(case.rows) <= {row.name for row in ROWS}]
