#!/usr/bin/env python3
"""Measure Tollgate and its peers, and check the requirements, above all on CPU time per request.

All rows are measured in turn, in several rounds per run, each time with a new gateway and a new Redis.
The gateway runs on CPU 0; load, backend and Redis share CPU 1. README.md explains the tables.
"""

import argparse
import collections
import fnmatch
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import plot
import report
from cases import ROWS, TOLLGATE, invalidity
from grpc_rows import Grpc
from java_peers import BUILD as BUILD_JAVA, Burst, Java
from measure import BUILD_SECONDS, GATEWAY_CPU, OTHER_CPU, ROOT, Bench, Micro, Row, progress
from processes import Invalid, Processes
from services import DECISIONS, Service

PACKAGES = {
    "wrk": "wrk",
    "h2load": "nghttp2-client",
    "nghttp": "nghttp2-client",
    "nginx": "nginx",
    "haproxy": "haproxy",
    "redis-server": "redis-server",
    "openssl": "openssl",
    "/usr/lib/nginx/modules/ngx_http_lua_module.so": "libnginx-mod-http-lua",
}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each row (%(default)s)")
    parser.add_argument("--seconds", type=int, default=4, help="seconds of measuring per row and round (%(default)s)")
    parser.add_argument("--only", metavar="NAMES", default="*", help="rows, separated by commas; * matches anything: 'nginx-*'")
    parser.add_argument("--peers-only", action="store_true", help="leave Tollgate out, and don't build it")
    parser.add_argument("--release", "--binary", type=program, help="a release build; without it, cargo builds one")
    parser.add_argument("--dist", type=program, help="the build of scripts/dist.sh, whose rows are left out without it")
    parser.add_argument("--envoy", type=program, help="an Envoy, for the rows behind it, which are left out without it")
    parser.add_argument("--reference", type=program, help="a built envoyproxy/ratelimit, for those rows, too")
    parser.add_argument("--grpc", type=program, help="a Python with grpcio, for the rows of gRPC")
    parser.add_argument("--java", action="store_true", help="measure the peers in Java, too, which Maven builds")
    outputs = parser.add_argument_group("results")
    outputs.add_argument("--json", metavar="FILE", type=pathlib.Path, help="write the figures of every round to this file")
    outputs.add_argument("--svg", metavar="FILE", type=pathlib.Path, help="draw the CPU times into this file")
    outputs.add_argument("--markdown", metavar="FILE", type=pathlib.Path, help="write the tables into this document")
    outputs.add_argument("--read", metavar="FILE", type=pathlib.Path, help="measure nothing: show what --json wrote")
    return parser.parse_args()


def choose_rows(options):
    """Returns the selected rows; every pattern must match a row."""
    patterns = options.only.split(",")
    for pattern in patterns:
        if not fnmatch.filter([row.name for row in ROWS], pattern):
            sys.exit(f"no row is called `{pattern}`; there are: {', '.join(row.name for row in ROWS)}")
    named = [row for row in ROWS if any(fnmatch.fnmatch(row.name, pattern) for pattern in patterns)]
    if not (options.envoy and options.reference):
        named = [row for row in named if not isinstance(row, Service)]
    if not options.dist:
        named = [row for row in named if not (is_gateway(row) and row.build == "dist")]
    if not options.grpc:
        named = [row for row in named if not isinstance(row, Grpc)]
    if not options.java:
        named = [row for row in named if not isinstance(row, (Java, Burst))]
    return [row for row in named if not (options.peers_only and is_ours(row))]


def program(path):
    """Returns the whole path of a program, without following links: a venv's Python is one."""
    found = shutil.which(path)
    if not found:
        raise argparse.ArgumentTypeError(f"{path} is no program")
    return pathlib.Path(found).absolute()


def is_ours(row):
    return isinstance(row, Micro) or is_gateway(row)


def is_gateway(row):
    return isinstance(row, Row) and row.config in (TOLLGATE, DECISIONS)


def check_machine():
    """Ends the program with a remedy if the machine lacks something."""
    missing = {package for file, package in PACKAGES.items() if not (shutil.which(file) or os.path.exists(file))}
    if missing:
        sys.exit(f"missing; on Debian: apt-get install {' '.join(sorted(missing))}")
    if not {GATEWAY_CPU, OTHER_CPU} <= os.sched_getaffinity(0):
        sys.exit(f"needs CPU {GATEWAY_CPU} and CPU {OTHER_CPU}; may run on {sorted(os.sched_getaffinity(0))}")


def prepare():
    """Checks the machine, allows as many open files as it can, and has signals end the program in order."""
    check_machine()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit("stopped"))


def build(options, rows, processes):
    """Builds the programs that the rows measure. Returns Tollgate's binaries by build."""
    for row in rows:
        if isinstance(row, Micro):
            run(row.command("--no-run"), processes)
    if any(isinstance(row, Java) for row in rows):
        run(BUILD_JAVA, processes)
    builds = {row.build for row in rows if is_gateway(row)}
    binaries = {build: getattr(options, build) for build in sorted(builds)}
    if "release" in builds and not options.release:
        manifest = ["--manifest-path", ROOT / "Cargo.toml"]
        run(["cargo", "build", "--release", "--locked", "--bin", "tollgate", *manifest], processes)
        target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
        binaries["release"] = (target / "release" / "tollgate").resolve()
    return binaries


def run(command, processes):
    progress(" ".join(map(str, command)))
    return processes.output(command, BUILD_SECONDS)


def describe(options, binaries):
    """Returns the time, versions, machine and duration of the run."""

    def first_line(*command):
        ran = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return ran.stdout.strip().partition("\n")[0].strip()

    model = re.search(r"model name\s*:\s*(.*)", pathlib.Path("/proc/cpuinfo").read_text())
    versions = [
        *(f"{build} build: {first_line(binary, '--version')}" for build, binary in binaries.items()),
        first_line("nginx", "-v").replace("nginx version: ", ""),
        re.search(r"HAProxy version \S+|.*", first_line("haproxy", "-v"))[0],
        f"Envoy {first_line(options.envoy, '--version').rpartition(': ')[2].split('/')[1]}" if options.envoy else "",
        re.search(r"Redis server v=\S+|.*", first_line("redis-server", "--version"))[0],
        f"{model[1] if model else platform.machine()}, {os.cpu_count()} CPUs",
        f"Linux {platform.release()}",
    ]
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return f"{begun}: {', '.join(filter(None, versions))}; {options.rounds} × {options.seconds} s a row"


def measure(options):
    """Returns the figures of the rows, and the conditions of the run."""
    rows = choose_rows(options)
    prepare()
    results = collections.defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as scratch, Processes(pathlib.Path(scratch)) as processes:
        binaries = build(options, rows, processes)
        about = describe(options, binaries)
        os.sched_setaffinity(0, {OTHER_CPU})
        for name, figures in Bench(options, binaries, processes).run(rows):
            results[name].append(figures)
    return {"about": about, "rows": results}


def main():
    options = parse_options()
    if options.markdown:
        report.check(options.markdown)
    record = json.loads(options.read.read_text()) if options.read else measure(options)
    results = record["rows"]
    report.print_tables(results)
    if options.json:
        options.json.write_text(json.dumps(record | {"cases": report.records(results)}, indent=1) + "\n")
    drawing = plot.drawing(results) if options.svg else ""
    if drawing:
        options.svg.write_text(drawing)
    if options.markdown:
        shown = os.path.relpath(options.svg, options.markdown.parent) if drawing else None
        report.insert(options.markdown, report.markdown(results, record["about"], shown))
    holds = all(judgement.holds for judgement in report.judgements(results))
    return 0 if holds and not any(map(invalidity, results.values())) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Invalid as failure:
        sys.exit(str(failure))
    except KeyboardInterrupt:
        sys.exit(130)
