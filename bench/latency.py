#!/usr/bin/env python3
"""Measure latency at fixed rates of requests (an open loop), beside nginx and Envoy, and while something happens.

Each gateway gets 50 % and 80 % of the requests per second that it has answered on 64 connections without pauses.
README.md explains the tables.
"""

import argparse
import collections
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import statistics
import sys
import tempfile
import threading
import time

import report
from cases import NGINX, OPENRESTY, TOLLGATE, invalidity
from measure import BENCH, BUILD_SECONDS, MANY_KEYS, OTHER_CPU, PEERS, TOLERATED_SHARE, Bench, Row, progress
from processes import Invalid, Processes
from run import build, describe, prepare, program

ENVOY = PEERS / "envoy-proxy.yaml"
SHARES = (0.5, 0.8)
CAPACITY_SECONDS = 1
REDIS_AWAY_SECONDS = 0.5
# The share of the capacity that the one key has of which there is a burst, and how many times as much it has then.
HOT_SHARE, BURST = 0.04, 10
GOAL = 1.1

# Title, figure, form.
COLUMNS = [
    ("req/s", "rate", "9.0f"),
    ("p50 µs", "p50_us", "9.0f"),
    ("p99 µs", "p99_us", "9.0f"),
    ("p99.9 µs", "p999_us", "10.0f"),
    ("longest µs", "most_us", "12.0f"),
    ("failed", "failed", "8.2%"),
    ("late µs", "late_us", "9.0f"),
]
MARKS = "<!-- latencies: bench/latency.py --markdown -->", "<!-- end of the latencies -->"


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (%(default)s)")
    parser.add_argument("--seconds", type=int, default=4, help="seconds per row and round (%(default)s)")
    parser.add_argument("--release", type=program, help="a release build; without it, cargo builds one")
    parser.add_argument("--dist", type=program, help="the build of scripts/dist.sh, which is left out without it")
    parser.add_argument("--envoy", type=program, help="an Envoy, which is left out without it")
    parser.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the figures of all rounds here")
    parser.add_argument("--markdown", metavar="FILE", type=pathlib.Path, help="write the tables into this document")
    return parser.parse_args()


def steady_rows(options):
    """Returns the rows. Each list has one work, and begins with the peer that Tollgate is compared with."""
    peers = {"nginx": NGINX} | ({"envoy": ENVOY} if options.envoy else {})
    works = [
        ("plain", peers, "/", 0),
        ("limit", peers, "/limit", 0),
        ("redis", {"openresty": OPENRESTY}, "/one-key", 1),
    ]
    return [
        [Row(f"{name}-{work}", config, path, keys=keys) for name, config in others.items()]
        + of_builds(options, work, TOLLGATE, path, keys=keys)
        for work, others, path, keys in works
    ]


def of_builds(options, work, config, path, **rest):
    """Returns the row of each build of Tollgate."""
    names = {"tollgate": "release"} | ({"dist": "dist"} if options.dist else {})
    return [Row(f"{name}-{work}", config, path, build=build, **rest) for name, build in names.items()]


def disturbed_rows(options, scratch):
    """Returns the rows that are measured before and during an event: those of the dist build, if it is there."""
    # With a deadline and without Redis as by default: run.py has other choices, so that a failure shows.
    failover = scratch / "failover.toml"
    failover.write_text(re.sub(r'timeout = ".*"\non_failure = ".*"\n', "", TOLLGATE.read_text()))
    return [
        (of_builds(options, "reload", TOLLGATE, "/limit")[-1], "reload"),
        (of_builds(options, "redis-restart", failover, "/one-key", keys=1)[-1], "Redis restarts"),
        (of_builds(options, "burst", TOLLGATE, "/many-keys", keys=MANY_KEYS, varied="X-Key")[-1], "burst"),
    ]


class Loop:
    """Measures gateways under load at a fixed rate."""

    def __init__(self, bench, generator):
        self.bench = bench
        self.generator = generator

    def load(self, row, port, rate, hot_rate=0, burst=1):
        """Returns the figures of one measurement."""
        seconds = self.bench.options.seconds
        command = [self.generator, port, row.path, seconds, rate, max(row.keys, 1), hot_rate, burst]
        seen = json.loads(self.bench.processes.output([str(part) for part in command], seconds + 30))
        failed = seen["not_2xx"] + seen["broken"]
        return seen | {"rate": rate, "failed": failed / (seen["requests"] + seen["broken"])}

    def start(self, row, stack):
        """Starts a gateway. Returns its port, its process and the requests per second that it answers."""
        ports, gateways = row.start(self.bench, stack)
        row.check_answers(self.bench, ports)
        row.load(self.bench, ports, CAPACITY_SECONDS)
        return ports[0], gateways[0], row.load(self.bench, ports, CAPACITY_SECONDS).per_second

    def steady(self, row):
        """Yields a gateway's figures at each share of its capacity."""
        with contextlib.ExitStack() as stack:
            if row.keys:
                stack.enter_context(self.bench.redis())
            port, _, capacity = self.start(row, stack)
            for share in SHARES:
                figures = self.load(row, port, capacity * share)
                if figures["failed"] > TOLERATED_SHARE:
                    raise Invalid(f"{figures['failed']:.1%} of the requests failed")
                yield f"{row.name} {share:.0%}", figures

    def disturbed(self, row, event):
        """Yields Tollgate's figures at half of its capacity, before an event and during it."""
        with contextlib.ExitStack() as stack:
            redis = stack.enter_context(contextlib.ExitStack())
            redis.enter_context(self.bench.redis())
            port, gateway, capacity = self.start(row, stack)
            hot_rate = capacity * HOT_SHARE if event == "burst" else 0
            yield f"{row.name}, before", self.load(row, port, capacity / 2, hot_rate)
            thread = threading.Thread(target=self.cause, args=[event, row, port, gateway, redis])
            thread.start()
            figures = self.load(row, port, capacity / 2, hot_rate, BURST)
            thread.join()
            reloads = (self.bench.processes.scratch / f"{port}.log").read_text().count("reloaded")
            if reloads != (2 if event == "reload" else 0):
                raise Invalid(f"{reloads} reloads")
            yield f"{row.name}, during", figures

    def cause(self, event, row, port, gateway, redis):
        """Causes the event after a third of the measurement. A burst is the generator's."""
        third = self.bench.options.seconds / 3
        time.sleep(third)
        if event == "Redis restarts":
            redis.close()
            time.sleep(REDIS_AWAY_SECONDS)
            redis.enter_context(self.bench.redis())
        elif event == "reload":
            config = self.bench.processes.scratch / f"{port}-{row.config.name}"
            text = config.read_text()
            for edited in (text.replace("10000000/s", "20000000/s"), text):
                config.write_text(edited)
                gateway.send_signal(signal.SIGHUP)
                time.sleep(third)


def measure(options):
    """Returns the figures of the rows, and the conditions of the run."""
    prepare()
    results = collections.defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as folder, Processes(pathlib.Path(folder)) as processes:
        works, scratch = steady_rows(options), processes.scratch
        binaries = build(options, sum(works, []), processes)
        about = describe(options, binaries)
        generator = scratch / "open_loop"
        processes.output(["rustc", "--edition", "2024", "-O", "-o", generator, BENCH / "open_loop.rs"], BUILD_SECONDS)
        os.sched_setaffinity(0, {OTHER_CPU})
        bench = Bench(options, binaries, processes)
        loop = Loop(bench, generator)
        upstream = bench.command(PEERS / "upstream.conf", bench.upstream_port)
        with processes.server(upstream, OTHER_CPU, bench.upstream_port):
            for number in range(options.rounds):
                progress(f"round {number + 1} of {options.rounds}")
                steady = [(row.name, loop.steady(row)) for row in sum(works, [])]
                disturbed = [(row.name, loop.disturbed(row, event)) for row, event in disturbed_rows(options, scratch)]
                for name, figures in steady + disturbed:
                    collect(results, name, figures)
    return about, results


def collect(results, name, measured):
    """Adds a row's figures to the results, or why it is invalid."""
    progress(name)
    try:
        for place, figures in measured:
            results[place].append(figures)
    except (Invalid, OSError, http.client.HTTPException) as reason:
        results[name].append({"invalid": str(reason) or repr(reason)})


def ratios(options, results):
    """Returns name, rounds and goal of each p99.9 that is compared with another."""
    steady = [
        (f"{row.name} {share:.0%}", f"{peer.name} {share:.0%}", GOAL if row.config == TOLLGATE else None)
        for peer, *others in steady_rows(options)
        for row in others
        for share in SHARES
    ]
    during = [(name, name.replace("during", "before"), None) for name in results if name.endswith("during")]
    return [
        (f"{name}, of {peer}", [one["p999_us"] / other["p999_us"] for one, other in rounds], goal)
        for name, peer, goal in steady + during
        if (rounds := list(zip(results.get(name, []), results.get(peer, []))))
    ]


def table(options, results):
    """Returns the tables as lines of Markdown, which are readable in a terminal, too."""
    width = max(map(len, results)) + 2
    lines = ["| " + " | ".join(["row".ljust(width), *(title.rjust(report.width(form)) for title, _, form in COLUMNS)]) + " |"]
    lines.append("|---" + "|--:" * len(COLUMNS) + "|")
    for name, rounds in results.items():
        if reason := invalidity(rounds):
            lines.append(f"| {f'`{name}`'.ljust(width)} | invalid: {reason} |")
            continue
        medians = {figure: statistics.median(each[figure] for each in rounds) for _, figure, _ in COLUMNS}
        cells = [format(medians[figure], form) for _, figure, form in COLUMNS]
        lines.append("| " + " | ".join([f"`{name}`".ljust(width), *cells]) + " |")
    lines += ["", "| p99.9 | median | rounds | goal | |", "|---|--:|--:|--:|---|"]
    for name, rounds, goal in ratios(options, results):
        median = statistics.median(rounds)
        verdict = "" if goal is None else "goal" if median <= goal else "missed"
        lines.append(f"| {name} | {median:.2f} | {min(rounds):.2f} to {max(rounds):.2f} | {goal or ''} | {verdict} |")
    return lines


def main():
    options = parse_options()
    if options.markdown:
        report.check(options.markdown, MARKS)
    about, results = measure(options)
    lines = table(options, results)
    print("\n".join(lines))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "rows": results}, indent=1) + "\n")
    if options.markdown:
        report.insert(options.markdown, "\n".join([f"{about}.", "", *lines]), MARKS)
    return 1 if any(map(invalidity, results.values())) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
