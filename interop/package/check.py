#!/usr/bin/env python3
"""Tests the Debian package in a root of its own, the tarball, and the files of the image; interop/package.sh prepares them.

    check.py ROOT IMAGE    the roots of the package and of the container image
"""

import http.client
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(sys.argv[1])
IMAGE = pathlib.Path(sys.argv[2])
IMAGE_BYTES_MOST = 60_000_000
CONFIGURATION = ROOT / "etc/tollgate/gateway.toml"
PERMITS = 10_000
FLEET = f"""
[server]
listen = "127.0.0.1:PORT"
timeouts = {{ drain = "10s" }}
health = "/-/ready"
[store]
url = "redis://127.0.0.1:6379"
timeout = "5s"
[limits.all]
key = "ip"
rate = "{PERMITS}/h"
[[routes]]
path = "/{{*rest}}"
limits = ["all"]
respond = {{ status = 200 }}
"""
HAPROXY = """
defaults
    mode http
    timeout connect 2s
    timeout client 30s
    timeout server 30s
    option httpchk GET /-/ready
    retries 3
    option redispatch
    retry-on conn-failure empty-response
frontend in
    bind 127.0.0.1:7000
    default_backend gateways
backend gateways
    server one 127.0.0.1:7001 check inter 200ms fall 1 rise 1
    server two 127.0.0.1:7002 check inter 200ms fall 1 rise 1
"""


def run(*words, chroot=True, **options):
    words = ["/usr/sbin/chroot", str(ROOT), *words] if chroot else words
    done = subprocess.run(words, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def start(*words, user=True, variables=None):
    user = ["--userspec=tollgate:tollgate"] if user else []
    return subprocess.Popen(["/usr/sbin/chroot", *user, str(ROOT), *words], env={"PATH": "/usr/bin:/bin", **(variables or {})})


def get(port, path="/"):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status, response.headers
    finally:
        connection.close()


def until(what, is_true, seconds=30):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"timeout: {what}"
        time.sleep(0.02)


def answers(port, path="/-/ready"):
    try:
        return get(port, path)[0] < 500
    except OSError:
        return False


def stop(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0, process.returncode


def first_429(process, began):
    until("the gateway listens", lambda: answers(8080, "/"))
    statuses = []
    while 429 not in statuses and len(statuses) < 6:
        statuses.append(get(8080)[0])
    assert statuses[-1] == 429, statuses
    took = time.monotonic() - began
    assert took < 60, took
    return took


def from_tarball():
    began = time.monotonic()
    (ROOT / "tarball").mkdir()
    run("tar", "--extract", "--gunzip", "--strip-components=1", "--directory", "/tarball", "--file", "/release.tar.gz")
    process = start("/tarball/bin/tollgate", "run", "--config", "/tarball/etc/gateway.toml", user=False)
    took = first_429(process, began)
    stop(process)
    (ROOT / "release.tar.gz").unlink()
    completions = ["bash-completion/completions/tollgate", "zsh/site-functions/_tollgate", "fish/vendor_completions.d/tollgate.fish"]
    shared = [f"share/{name}" for name in ["man/man1/tollgate.1", *completions]]
    for name in ["LICENSE", "LICENSES", "sbom.cdx.json", "install.md", "systemd/tollgate.service", *shared]:
        assert (ROOT / "tarball" / name).stat().st_size > 100, name
    print(f"tarball: first 429 {took:.1f} s after the begin of its unpacking")


def in_image():
    """What the engine would do with the image: its user, command and health check."""
    def inside(*words):
        return ["/usr/sbin/chroot", "--userspec=65532:65532", str(IMAGE), *words]

    size = sum(file.lstat().st_size for file in IMAGE.rglob("*"))
    assert size < IMAGE_BYTES_MOST, size
    subprocess.run(["mount", "--bind", str(IMAGE), str(IMAGE)], check=True)
    subprocess.run(["mount", "--options", "remount,bind,ro", str(IMAGE)], check=True)
    variables = {"PATH": "/usr/local/bin:/bin", "TOLLGATE_LISTEN": "0.0.0.0:8080"}
    configuration = ["--config", "/etc/tollgate/gateway.toml"]
    began = time.monotonic()
    process = subprocess.Popen(inside("/usr/local/bin/tollgate", "run", *configuration), env=variables)
    took = first_429(process, began)
    ready = inside("/usr/local/bin/tollgate", "ready", *configuration)
    assert run(*ready, chroot=False, env=variables) == "ready\n"
    stop(process)
    assert subprocess.run(ready, env=variables, capture_output=True).returncode == 1
    assert run(*inside("/bin/ratelimit", "--help"), chroot=False)
    assert "tollgate" in os.readlink(IMAGE / "bin/ratelimit")
    print(f"image: {size / 1e6:.0f} MB, read-only, first 429 after {took:.1f} s")


def installed():
    began = time.monotonic()
    run("dpkg", "--install", "/older.deb")
    run("getent", "passwd", "tollgate")
    assert version(), "no version"
    for name in ["usr/share/man/man1/tollgate-check.1.gz", "usr/share/bash-completion/completions/tollgate", "lib/systemd/system/tollgate.socket"]:
        assert (ROOT / name).exists(), name
    assert "/etc/tollgate/gateway.toml" in run("dpkg-query", "--show", "--showformat=${Conffiles}", "tollgate")
    run("tollgate", "check", "/etc/tollgate/gateway.toml")
    run("logrotate", "--debug", "/etc/logrotate.d/tollgate")
    process = start("/usr/bin/tollgate", "run", "--config", "/etc/tollgate/gateway.toml")
    print(f"package: first 429 {first_429(process, began):.1f} s after the begin of its installation")

    assert answers(9901, "/readyz")
    # The operator's change, which upgrades keep.
    CONFIGURATION.write_text(CONFIGURATION.read_text().replace('rate = "5/10s"', 'rate = "7/10s"'))
    process.send_signal(signal.SIGHUP)
    until("the new rate applies", lambda: get(8080)[1]["RateLimit-Policy"] == '"per-client";q=7;w=10')
    stop(process)
    print("package: started, queried, reloaded")


class Load:
    """Clients that send requests through HAProxy until they are told to end."""

    def __init__(self, clients, pause):
        self.statuses, self.failures, self.ended, self.pause = [], [], False, pause
        # Daemons, which don't hold up the end of a check that has failed.
        self.threads = [threading.Thread(target=self.client, daemon=True) for _ in range(clients)]
        for thread in self.threads:
            thread.start()

    def client(self):
        while not self.ended:
            try:
                self.statuses.append(get(7000)[0])
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
            time.sleep(self.pause)

    def admitted(self):
        return self.statuses.count(200)

    def end(self):
        self.ended = True
        for thread in self.threads:
            thread.join()


def version():
    """The version of the installed program, with its commit."""
    return run("tollgate", "--version").splitlines()[0].removeprefix("tollgate ")


def upgraded_under_load():
    older = version()
    with tempfile.TemporaryDirectory() as folder:
        for number in (1, 2):
            (ROOT / f"etc/tollgate/{number}.toml").write_text(FLEET.replace("PORT", str(7000 + number)))
        proxy = pathlib.Path(folder) / "haproxy.cfg"
        proxy.write_text(HAPROXY)
        redis = subprocess.Popen(["redis-server", "--port", "6379", "--save", "", "--dir", folder], stdout=subprocess.DEVNULL)
        until("Redis answers", lambda: subprocess.run(["redis-cli", "ping"], capture_output=True).stdout == b"PONG\n")
        gateways = [start("/usr/bin/tollgate", "run", "--config", f"/etc/tollgate/{number}.toml") for number in (1, 2)]
        haproxy = subprocess.Popen(["haproxy", "-q", "-db", "-f", str(proxy)])
        until("both gateways are ready", lambda: answers(7001) and answers(7002) and answers(7000))
        # Slowly, so that permits are left when the gateways have been replaced.
        load = Load(clients=8, pause=0.1)
        until("there is load", lambda: len(load.statuses) > 100)
        run("dpkg", "--force-confold", "--install", "/newer.deb")
        load.pause = 0.02
        admitted = []
        for at, number in enumerate((1, 2)):
            admitted.append(load.admitted())
            stop(gateways[at])
            gateways[at] = start("/usr/bin/tollgate", "run", "--config", f"/etc/tollgate/{number}.toml")
            until("the new gateway is ready", lambda: answers(7000 + number))
            before = len(load.statuses)
            until("the new gateway serves", lambda: len(load.statuses) > before + 200)
        admitted.append(load.admitted())
        assert 0 < admitted[0] < admitted[1] < admitted[2] < PERMITS, f"not all mixtures of versions have admitted: {admitted}"
        load.pause = 0
        until("the limit is reached", lambda: load.statuses.count(429) > 100, seconds=240)
        load.end()
        statuses = {status: load.statuses.count(status) for status in set(load.statuses)}
        assert load.failures == [] and set(statuses) == {200, 429}, (statuses, load.failures[:5])
        assert statuses[200] == PERMITS, statuses
        for process in [*gateways, haproxy, redis]:
            process.terminate()
            process.wait(40)
        for number in (1, 2):
            (ROOT / f"etc/tollgate/{number}.toml").unlink()
    assert 'rate = "7/10s"' in CONFIGURATION.read_text(), "the upgrade has replaced the operator's file"
    print(f"package: upgraded from {older} to {version()} under load, {sum(statuses.values())} requests, none failed")
    both = admitted[2] - admitted[0]
    print(f"package: {statuses[200]} of {PERMITS} permits given: {admitted[0]} by old gateways, {both} during the replacement, the others by new ones")


def removed():
    (ROOT / "var/log/tollgate").mkdir(exist_ok=True)
    (ROOT / "etc/tollgate/environment").write_text("SECRET=1\n")
    run("dpkg", "--remove", "tollgate")
    assert CONFIGURATION.exists() and not (ROOT / "usr/bin/tollgate").exists()
    run("dpkg", "--purge", "tollgate")
    left = run("find", "/", "-xdev", "-name", "*tollgate*", "-not", "-path", "/tarball/*").split()
    assert left == [], left
    passwd = (ROOT / "etc/passwd").read_text() + (ROOT / "etc/group").read_text()
    assert "tollgate" not in passwd
    print("package: removed and purged, nothing is left")


def main():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for folder in ("proc", "dev"):
        subprocess.run(["mount", "--bind", f"/{folder}", str(ROOT / folder)], check=True)
    os.environ.update(PATH="/usr/sbin:/usr/bin:/sbin:/bin", DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
    from_tarball()
    in_image()
    installed()
    upgraded_under_load()
    removed()


if __name__ == "__main__":
    main()
