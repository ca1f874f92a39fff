#!/usr/bin/env python3
"""Records what the real RRateLimiter leaves in Redis, step by step, as JSON under transcripts/.

    interop/redisson/record.py [version…]       by default 3.21.0, 3.52.0 and 4.7.0

Needs mvn, java and redis-server. The tests replay the transcripts without Java: see tests/redisson.
"""

import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
VERSIONS = ["3.21.0", "3.52.0", "4.7.0"]

# A pause is `sleep MS`. Commands that a version lacks are left out of its transcript.
STEPS = """
try_set logins overall 5 1000
acquire logins 2 1
acquire logins 1 3
acquire logins 1 1
available logins
sleep 1100
acquire logins 1 2
try_set logins overall 50 9000
rate logins
sleep 1100
available logins
set logins overall 10 2000
acquire logins 4 1
acquire logins 1 11
release logins 3
available logins
acquire logins 1 9
release logins 100
sleep 2100
acquire logins 1 10
delete logins
acquire logins 1 1
try_set kept overall 5 1000 60000
acquire kept 2 1
acquire kept 1 4
update kept overall 3 2000 60000 keep
acquire kept 1 2
update kept overall 1 2000 60000 keep
acquire kept 1 1
update kept overall 8 3000 60000 drop
acquire kept 1 8
update kept client 4 3000 60000 keep
acquire kept 1 3
update absent overall 3 2000 0 keep
try_set mine client 3 1000
acquire mine 2 2
expire mine 5000
acquire mine 1 1
ttl mine
clear_expire mine
acquire mine 1 1
try_set {tenant}:orders overall 4 60000
acquire {tenant}:orders 1 3
expire {tenant}:orders 30000
acquire {tenant}:orders 1 1
acquire {tenant}:orders 1 1
""".strip().splitlines()


class Redis:
    """A connection that speaks just enough of Redis's protocol."""

    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def __call__(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.file.write(b"*%d\r\n" % len(words))
        for word in words:
            self.file.write(b"$%d\r\n%s\r\n" % (len(word), word))
        self.file.flush()
        return self.reply()

    def reply(self):
        line = self.file.readline()[:-2]
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RuntimeError(rest.decode())
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return [self.reply() for _ in range(int(rest))]

    def state(self, name):
        """The keys of a limiter, with their types, content and expiry."""
        keys = {}
        for key in sorted(self("KEYS", "*")):
            if name not in key.decode().replace("{" + name + "}", name):
                continue
            kind = self("TYPE", key).decode()
            entry = {"type": kind, "pttl": self("PTTL", key)}
            if kind == "hash":
                flat = [text.decode() for text in self("HGETALL", key)]
                entry["fields"] = dict(sorted(zip(flat[::2], flat[1::2])))
            elif kind == "zset":
                flat = self("ZRANGE", key, 0, -1, "WITHSCORES")
                members = zip(flat[::2], flat[1::2])
                entry["members"] = [{"score": int(score), "hex": member.hex()} for member, score in members]
            else:
                entry["value"] = self("GET", key).decode()
            keys[key.decode()] = entry
        return keys

    def now_ms(self):
        seconds, microseconds = self("TIME")
        return int(seconds) * 1000 + int(microseconds) // 1000


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start_redis(folder):
    port = free_port()
    words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    for _ in range(200):
        try:
            return server, port, Redis(port)
        except OSError:
            time.sleep(0.05)
    raise RuntimeError("redis-server does not answer")


def build(version):
    words = ["mvn", "-q", "-B", f"-Dredisson.version={version}", "package"]
    subprocess.run(words, cwd=HERE, check=True, stdout=sys.stderr)
    target = HERE / "target" / version
    return f"{target / 'classes'}:{target / 'lib'}/*"


def record(version):
    classes = build(version)
    with tempfile.TemporaryDirectory() as folder:
        server, port, redis = start_redis(folder)
        words = ["java", "-cp", classes, "tollgate.Limiter", f"redis://127.0.0.1:{port}"]
        java = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert json.loads(java.stdout.readline())["id"] == "ready"
            return run(version, java, redis)
        finally:
            java.stdin.close()
            java.wait(20)
            server.terminate()
            server.wait()


def run(version, java, redis):
    steps = []
    for number, command in enumerate(STEPS):
        verb, rest = command.split(" ", 1)
        if verb == "sleep":
            time.sleep(int(rest) / 1000)
            continue
        java.stdin.write(f"{number} {command}\n")
        java.stdin.flush()
        reply = json.loads(java.stdout.readline())
        assert reply.pop("id") == str(number)
        reply.pop("at", None)
        fault = reply.get("error", "")
        if "NoSuchMethod" in fault or "UnsupportedOperation" in fault:
            continue
        if fault:
            # Of an error, its existence is what is compared: the text quotes the script.
            reply = {"error": fault.split(":")[0]}
        steps.append({"command": command, "reply": reply, "now_ms": redis.now_ms(), "keys": redis.state(rest.split(" ")[0])})
    return {"version": version, "steps": steps}


def main():
    os.makedirs(HERE / "transcripts", exist_ok=True)
    for version in sys.argv[1:] or VERSIONS:
        transcript = record(version)
        path = HERE / "transcripts" / f"{version}.json"
        lines = ",\n".join(json.dumps(step, separators=(",", ":")) for step in transcript["steps"])
        path.write_text(f'{{"version":"{version}","steps":[\n{lines}\n]}}\n')
        print(f"{path.relative_to(HERE)}: {len(transcript['steps'])} steps")


if __name__ == "__main__":
    main()
