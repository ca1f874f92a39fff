#!/usr/bin/env python3
"""Look for requests whose keys take long to read: random texts, repeated up to a size that the gateway accepts.

    bench/hostile_keys.py BINARY                    # one minute
    bench/hostile_keys.py BINARY --seconds 600 --seed 2

It prints the slowest requests of each limit, with the CPU time that the gateway took for each.
"""

import argparse
import pathlib
import random
import re
import socket
import sys
import tempfile
import time

from processes import Invalid, Processes, free_ports

COOKIE = ["sid", "=", ";", "; ", '"', ",", " ", "\\", "%41", "+", "a", "x=1", "[", "]", "\xa0", "\xc4\xb0", "(", "$Version=1;", "__Host-"]
COOKIE += ["j:", "{", ":", "/", "s%69d", "\t", "|", "@", "\\073", "%22"]
QUERY = ["api_key", "api.key", "apikey", "user", "id", "[", "]", ".", "=", "&", ";", "%5B", "%5D", "%61", "+", "?", "!", ":", "nxtP", "top."]
QUERY += ["_", "(", "'", "%00", "%E9", "%20", "__proto__", "%C4%B0", ","]
TOKEN = ["Bearer", "bearer ", "Basic", " ", "YTpi", "Og==", ".", "e", "eyJ", "=", '"', ",", ";", "%41", "+", "-", "_", "~", "token=", "Token"]
TOKEN += ["a=b", "JWT ", ":", "\t", "B+", "<", "eyJhbGciOiJIUzI1NiJ9."]
# The key of a limit, the field that it is read from (or the query), and what the texts are made of.
KEYS = [
    ("cookie:sid", "Cookie", COOKIE),
    ("query:api_key", None, QUERY),
    ("query:user[id]", None, QUERY),
    ("query:user.id", None, QUERY),
    ("header:authorization", "Authorization", TOKEN),
    ("jwt:sub", "Authorization", TOKEN),
    ("header:x-key", "X-Key", TOKEN),
]
SIZES = [8_000, 20_000, 31_000]
# A request that seems to take longer is repeated, as something else may have run meanwhile.
NOISE_US = 1_500
REPEATED = 5
SHOWN = 3


def configuration(port):
    limits = "".join(
        f'[limits.l{number}]\nkey = "{key}"\nrate = "1000000/s"\n'
        f'[[routes]]\npath = "/{number}"\nrespond = {{ body = "ok" }}\nlimits = ["l{number}"]\n'
        for number, (key, _, _) in enumerate(KEYS)
    )
    return f'[server]\nlisten = "127.0.0.1:{port}"\nworkers = 1\n[jwt]\nhmac_secret = "{"0123456789abcdef" * 2}"\n{limits}'


def text(parts):
    """Makes a text of a random size of up to two repeated ones, between others."""

    def some(most):
        return "".join(random.choices(parts, k=random.randint(1, most)))

    size, first, second = random.choice(SIZES), some(4), some(3)
    half = size // 2 if random.random() < 0.3 else size
    middle = first * (half // len(first)) + some(2) + second * ((size - half) // len(second))
    return (some(3) + middle + some(3))[:size]


def request(number):
    _, field, parts = KEYS[number]
    if field is None:
        target, line = f"/{number}?" + re.sub(r"[\s#]", "", text(parts)), ""
    else:
        target, line = f"/{number}", f"{field}: {text(parts)}\r\n"
    return f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{line}\r\n".encode("latin-1")


def cpu_us(process):
    """Returns the CPU time of a process so far. That of all its descendants, as the other benchmarks have it, takes longer to find."""
    files = pathlib.Path(f"/proc/{process.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1000


def cost_us(gateway, port, sent):
    """Sends a request and returns the CPU time until the gateway has closed the connection."""
    before = cpu_us(gateway)
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(sent)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    if not re.match(rb"HTTP/1\.1 (200|400|429) ", received):
        raise Invalid(f"{sent[:500]} got {received[:500]}")
    return cpu_us(gateway) - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    random.seed(options.seed)
    slowest, sent = {number: [] for number in range(len(KEYS))}, 0
    with tempfile.TemporaryDirectory() as scratch, Processes(pathlib.Path(scratch)) as processes:
        [port] = free_ports(1)
        file = pathlib.Path(scratch) / "gateway.toml"
        file.write_text(configuration(port))
        with processes.server([options.binary.resolve(), "run", "--config", file], 1, port) as gateway:
            end = time.monotonic() + options.seconds
            while time.monotonic() < end:
                number = random.randrange(len(KEYS))
                attempt = request(number)
                cost = cost_us(gateway, port, attempt)
                if cost > NOISE_US:
                    cost = min(cost_us(gateway, port, attempt) for _ in range(REPEATED))
                slowest[number] = sorted([(cost, attempt), *slowest[number]], reverse=True)[:SHOWN]
                sent += 1
    print(f"{sent} requests")
    for number, (key, _, _) in enumerate(KEYS):
        for cost, attempt in slowest[number]:
            values = attempt.partition(b"?" if KEYS[number][1] is None else b"close\r\n")[2]
            print(f"{cost / 1000:6.2f} ms  {key:20} {len(attempt):6} bytes  {values[:40]} … {attempt[-34:]}")


if __name__ == "__main__":
    try:
        main()
    except Invalid as invalid:
        sys.exit(str(invalid))
