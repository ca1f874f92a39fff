"""Load generators, and the parsing of their reports."""

import dataclasses
import pathlib
import re
import time

from processes import Invalid

# The key of all requests in rows with one key. It is one of those in varied.lua, too.
KEY = "k0"
VARIED = pathlib.Path(__file__).with_name("varied.lua")


@dataclasses.dataclass(frozen=True)
class Load:
    """The results that clients measured."""

    requests: int
    per_second: float
    not_2xx: int
    p50_us: float
    p99_us: float

    @classmethod
    def sum(cls, loads):
        """Combines concurrent results; the latencies are those of the slowest."""
        return cls(
            requests=sum(load.requests for load in loads),
            per_second=sum(load.per_second for load in loads),
            not_2xx=sum(load.not_2xx for load in loads),
            p50_us=max(load.p50_us for load in loads),
            p99_us=max(load.p99_us for load in loads),
        )


def wrk(url, connections, seconds, varied):
    """Returns the wrk command for HTTP/1.1, with one key. `varied` names a field to send with 10,000 values."""
    options = [f"-c{connections}", f"-d{seconds}s", "-H", f"X-Key: {KEY}", *(["-s", VARIED] if varied else [])]
    return ["wrk", "-t1", "--latency", "--timeout", "10s", *options, url, *(["--", varied] if varied else [])]


def read_wrk(report):
    """Parses wrk's report. Raises Invalid if connections failed or there were no responses."""
    failed = re.search(r"Socket errors: .*|\b0 requests in", report)
    if failed:
        raise Invalid(failed[0])
    not_2xx = re.search(r"Non-2xx or 3xx responses: (\d+)", report)
    return Load(
        requests=int(re.search(r"(\d+) requests in", report)[1]),
        per_second=float(re.search(r"Requests/sec:\s+([\d.]+)", report)[1]),
        not_2xx=int(not_2xx[1]) if not_2xx else 0,
        p50_us=latency_us(report, 50),
        p99_us=latency_us(report, 99),
    )


def latency_us(report, percent):
    value, unit = re.search(rf"\s{percent}%\s+([\d.]+)(us|ms|s)", report).groups()
    return float(value) * {"us": 1, "ms": 1e3, "s": 1e6}[unit]


def h2load(url, connections, streams, seconds, log):
    """Returns the h2load command for HTTP/2. It logs each request to a new file."""
    clients = ["-t1", f"-c{connections}", f"-m{streams}", f"-D{seconds}"]
    cipher = "--tls13-ciphers=TLS_AES_256_GCM_SHA384"  # wrk's first choice
    return ["h2load", *clients, cipher, f"--log-file={log}", "-H", f"X-Key: {KEY}", url]


def read_h2load(report, log):
    """Parses h2load's report. Raises Invalid if requests failed or there were no responses."""
    answered, failed, errored, late = map(
        int, re.search(r"(\d+) done, \d+ succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", report).groups()
    )
    if not answered or errored or late or "Application protocol: h2" not in report:
        raise Invalid(re.search(r"requests: .*", report)[0])
    # Start, status, microseconds.
    latencies = sorted(int(line.split()[2]) for line in log.read_text().splitlines())
    return Load(
        requests=answered,
        per_second=float(re.search(r"([\d.]+) req/s", report)[1]),
        not_2xx=failed,
        p50_us=latencies[len(latencies) // 2],
        p99_us=latencies[len(latencies) * 99 // 100],
    )


def round_trips_us(connection, seconds):
    """Returns the round-trip times of PING to Redis, sorted."""
    end = time.perf_counter() + seconds
    taken = []
    while (sent := time.perf_counter()) < end:
        connection.sendall(b"PING\r\n")
        if connection.recv(64) != b"+PONG\r\n":
            raise Invalid("Redis answers PING with something else")
        taken.append((time.perf_counter() - sent) * 1e6)
    return sorted(taken)


def read_divan(report):
    """Returns the greatest median of divan's report in nanoseconds. Raises Invalid if something allocates."""
    if "alloc:" in report:
        raise Invalid("it allocates")
    # Fastest, slowest, median, mean, samples, iterations.
    rows = [line.split("│")[-6:] for line in report.splitlines() if line.count("│") >= 5]
    medians = [row[2].split() for row in rows if re.match(r"\s*[\d.]", row[2])]
    if not medians:
        raise Invalid("nothing was measured")
    return max(float(value) * {"ns": 1, "µs": 1e3, "ms": 1e6}[unit] for value, unit in medians)
