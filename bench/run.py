#!/usr/bin/env python3
"""Measure Tollgate beside its peers: CPU microseconds per request, of the gateway and of Redis.

All rows are measured in turn, several rounds in one run, each with a gateway and a Redis that were started for
it. The gateway has CPU 0; load, backend and Redis share CPU 1. README.md says how to read the tables.
"""

import argparse
import collections
import dataclasses
import fnmatch
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile

from measure import BENCH, GATEWAY_CPU, OTHER_CPU, PEERS, Bench, Row, progress
from processes import Invalid, Processes

ROOT = BENCH.parent
BUILD_SECONDS = 1800

PACKAGES = {
    "wrk": "wrk",
    "nginx": "nginx",
    "haproxy": "haproxy",
    "redis-server": "redis-server",
    "/usr/lib/nginx/modules/ngx_http_lua_module.so": "libnginx-mod-http-lua",
}

NGINX = PEERS / "nginx.conf"
OPENRESTY = PEERS / "openresty.conf"
TOLLGATE = BENCH / "tollgate.toml"

# Rows that are compared stand together, so that little time passes between their measurements.
ROWS = [
    Row("haproxy-tcp", PEERS / "haproxy-tcp.cfg"),
    Row("nginx-proxy", NGINX),
    Row("tollgate-proxy", TOLLGATE),
    Row("nginx-limit", NGINX, "/limit"),
    Row("haproxy-limit", PEERS / "haproxy.cfg"),
    Row("tollgate-memory", TOLLGATE, "/limit"),
    Row("nginx-refused", NGINX, "/refused", admits=1),
    Row("tollgate-memory-refused", TOLLGATE, "/refused", admits=1),
    Row("openresty-one-key", OPENRESTY, "/one-key", redis=True),
    Row("tollgate-redis-one-key", TOLLGATE, "/one-key", redis=True),
    Row("openresty-many-keys", OPENRESTY, "/many-keys", redis=True, many_keys=True),
    Row("tollgate-redis-many-keys", TOLLGATE, "/many-keys", redis=True, many_keys=True),
    Row("openresty-refused", OPENRESTY, "/one-key-refused", redis=True, admits=100),
    Row("tollgate-redis-refused", TOLLGATE, "/one-key-refused", redis=True, admits=100),
]


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A row's CPU over a peer's, gateway and Redis together, and what it may be at most."""

    row: str
    peer: str
    at_most: float | None = None


COMPARISONS = [
    Comparison("tollgate-proxy", "nginx-proxy", at_most=1.25),
    Comparison("tollgate-redis-one-key", "openresty-one-key", at_most=0.6),
    Comparison("tollgate-proxy", "haproxy-tcp"),
    Comparison("tollgate-memory", "nginx-limit"),
    Comparison("tollgate-memory", "haproxy-limit"),
    Comparison("tollgate-memory-refused", "nginx-refused"),
    Comparison("tollgate-redis-many-keys", "openresty-many-keys"),
    Comparison("tollgate-redis-refused", "openresty-refused"),
]


def print_rows(results):
    """The table: medians over the rounds."""
    columns = {
        "req/s": ("requests_per_s", "9.0f"),
        "gateway µs": ("gateway_us", "12.2f"),
        "redis µs": ("redis_us", "10.2f"),
        "total µs": ("total_us", "10.2f"),
        "p50 µs": ("p50_us", "8.0f"),
        "p99 µs": ("p99_us", "8.0f"),
        "not 2xx": ("not_2xx", "9.2%"),
        "MiB": ("resident_mib", "7.1f"),
    }
    titles = "".join(f"{title:>{width(form)}}" for title, (_, form) in columns.items())
    print(f"\n{'row':26}{titles}")
    for name, rounds in results.items():
        invalid = invalidity(rounds)
        if invalid:
            print(f"{name:26}  INVALID: {invalid}")
            continue
        medians = {key: statistics.median(figures[key] for figures in rounds) for key in rounds[0]}
        print(f"{name:26}" + "".join(format(medians[key], form) for key, form in columns.values()))


def width(form):
    return int(form.partition(".")[0])


def invalidity(rounds):
    """Why a row is invalid, or None."""
    return next((figures["invalid"] for figures in rounds if "invalid" in figures), None)


def ratio(comparison, results):
    """(median, lowest, highest) over the rounds, or None if a row is invalid."""
    row, peer = results[comparison.row], results[comparison.peer]
    if invalidity(row) or invalidity(peer):
        return None
    quotients = [ours["total_us"] / theirs["total_us"] for ours, theirs in zip(row, peer)]
    return statistics.median(quotients), min(quotients), max(quotients)


def print_comparisons(results):
    """The ratios of the rows in this run; False if one with a requirement doesn't hold or couldn't be told."""
    measured = [each for each in COMPARISONS if each.row in results and each.peer in results]
    if not measured:
        return True
    print(f"\n{'gateway + Redis, CPU per request':50}{'median':>8}{'lowest':>8}{'highest':>9}  requirement")
    held = True
    for comparison in measured:
        figures = ratio(comparison, results)
        met = figures is not None and (comparison.at_most is None or figures[0] <= comparison.at_most)
        held = held and (met or comparison.at_most is None)
        numbers = "{:8.2f}{:8.2f}{:9.2f}".format(*figures) if figures else f"{'invalid':>25}"
        demand = f"<= {comparison.at_most} {'held' if met else 'MISSED'}" if comparison.at_most else ""
        print(f"{comparison.row + ' / ' + comparison.peer:50}{numbers}  {demand}".rstrip())
    return held


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (%(default)s)")
    parser.add_argument("--seconds", type=int, default=4, help="length of a measurement (%(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="kept open by wrk (%(default)s)")
    parser.add_argument("--only", metavar="NAMES", default="*", help="rows, by comma; * stands for anything: 'nginx-*'")
    parser.add_argument("--peers-only", action="store_true", help="leave Tollgate out, and don't build it")
    parser.add_argument("--binary", type=pathlib.Path, help="a built tollgate; without it, cargo builds profile dist")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the figures of every round there")
    return parser.parse_args()


def choose_rows(options):
    """The rows that the options name; every name must mean something."""
    patterns = options.only.split(",")
    for pattern in patterns:
        if not fnmatch.filter([row.name for row in ROWS], pattern):
            sys.exit(f"no row is called `{pattern}`; there are: {', '.join(row.name for row in ROWS)}")
    named = [row for row in ROWS if any(fnmatch.fnmatch(row.name, pattern) for pattern in patterns)]
    return [row for row in named if not (options.peers_only and row.config == TOLLGATE)]


def check_machine():
    """Ends the program, with what to do, if the machine lacks something."""
    missing = [package for file, package in PACKAGES.items() if not (shutil.which(file) or os.path.exists(file))]
    if missing:
        sys.exit(f"missing; on Debian: apt-get install {' '.join(missing)}")
    if not {GATEWAY_CPU, OTHER_CPU} <= os.sched_getaffinity(0):
        sys.exit(f"needs CPU {GATEWAY_CPU} and CPU {OTHER_CPU}; may run on {sorted(os.sched_getaffinity(0))}")


def build(processes):
    """Builds Tollgate as it is shipped, and returns the binary's path."""
    progress("cargo build --profile dist")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    manifest = ROOT / "Cargo.toml"
    command = ["cargo", "build", "--profile", "dist", "--locked", "--manifest-path", manifest, "--target-dir", target]
    processes.output(command, BUILD_SECONDS)
    return target / "dist" / "tollgate"


def main():
    options = parse_options()
    rows = choose_rows(options)
    check_machine()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))
    results = collections.defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as scratch, Processes(pathlib.Path(scratch)) as processes:
        binary = options.binary
        if not binary and any(row.config == TOLLGATE for row in rows):
            binary = build(processes)
        os.sched_setaffinity(0, {OTHER_CPU})
        for name, figures in Bench(options, binary, processes).run(rows):
            results[name].append(figures)
    print_rows(results)
    held = print_comparisons(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if held and not any(map(invalidity, results.values())) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
