#!/usr/bin/env python3
"""Draws docs/dashboard.png: the dashboard after a minute or more of varied load, with a rejected key looked up.

    cargo build --release && scripts/screenshot.py [SECONDS] [FILE]

It needs redis-server, wrk and chromium with its driver, all of which scripts/test.sh installs.
"""

import base64
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WIDTH, HEIGHT = 1440, 1700

CONFIG = """
[server]
listen = "127.0.0.1:{http}"
[admin]
listen = "127.0.0.1:{admin}"
[store]
url = "redis://127.0.0.1:{redis}"
[upstreams.orders]
servers = ["http://127.0.0.1:{upstream}"]
[limits.per-client]
key = "header:x-api-key"
rate = "100/10s"
[limits.search]
key = ["header:x-api-key", "method"]
rate = "40/10s"
[limits.logins]
key = "path:user"
rate = "5/min"
[limits.trial]
key = "ip"
rate = "50/s"
mode = "shadow"
[[routes]]
name = "orders"
path = "/v1/orders/{{id}}"
upstream = "orders"
limits = ["per-client", "trial"]
[[routes]]
name = "search"
path = "/v1/search"
upstream = "orders"
limits = ["per-client", "search"]
[[routes]]
name = "login"
path = "/login/{{user}}"
respond = {{ status = 200 }}
limits = ["logins"]
"""

# The upstream of the gateway: Tollgate's own echo, in a separate process.
UPSTREAM = '[server]\nlisten = "127.0.0.1:{upstream}"\n[upstreams.echo]\nbuiltin = "echo"\n' \
    '[[routes]]\npath = "/{{*rest}}"\nupstream = "echo"\n'

# A few clients send most requests, somebody guesses a password, and some ask for missing pages.
LOAD = """
function delay() return %d end
math.randomseed(%d)
request = function()
  local chance = math.random()
  wrk.headers['x-api-key'] = 'key-' .. math.floor(1 + 40 * math.random() ^ 3)
  if chance < 0.02 then return wrk.format('GET', '/favicon.ico') end
  if chance < 0.08 then return wrk.format('POST', '/login/admin') end
  if chance < 0.12 then return wrk.format('POST', '/login/user' .. math.random(40)) end
  if chance < 0.30 then return wrk.format('GET', '/v1/search?q=' .. math.random(99)) end
  return wrk.format('GET', '/v1/orders/' .. math.random(9999))
end
"""


def free_ports(names):
    """Returns a free port for each name."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = {name: s.getsockname()[1] for name, s in zip(names, sockets)}
    for s in sockets:
        s.close()
    return ports


def until_listens(port):
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nobody listens on {port}")


def load(folder, port, seconds):
    """Sends load in phases, over one to eight connections."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 1:
        script = folder / "load.lua"
        script.write_text(LOAD % (random.choice([5, 10, 20]), random.randrange(10**6)))
        duration, connections = min(random.randint(6, 14), int(left) + 1), random.randint(1, 8)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{duration}s", "-s", script, f"http://127.0.0.1:{port}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def shoot(url, file):
    """Opens the page, looks up the most rejected key, and takes the picture."""
    driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, text=True)
    try:
        port = next(line.rsplit(" ", 1)[1].strip(" .\n") for line in driver.stdout if "successfully on port" in line)

        def call(path, body):
            request = urllib.request.Request(f"http://127.0.0.1:{port}/session{path}", json.dumps(body).encode())
            return json.load(urllib.request.urlopen(request))["value"]

        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        options = {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}
        session = "/" + call("", {"capabilities": options})["sessionId"]
        develop = lambda command, of: call(f"{session}/goog/cdp/execute", {"cmd": command, "params": of})
        develop("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "light"}]})
        screen = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        develop("Emulation.setDeviceMetricsOverride", screen)
        call(f"{session}/url", {"url": url})
        time.sleep(3)
        rows = "[...document.querySelectorAll('#refused tbody tr')]"
        click = f"{rows}.find((row) => row.textContent.includes('per-client')).querySelector('button').click()"
        call(f"{session}/execute/sync", {"script": click, "args": []})
        time.sleep(2)
        file.write_bytes(base64.b64decode(develop("Page.captureScreenshot", {})["data"]))
        urllib.request.urlopen(urllib.request.Request(f"http://127.0.0.1:{port}/session{session}", method="DELETE"))
    finally:
        driver.kill()


def main():
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 590
    file = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "docs/dashboard.png"
    tollgate = ROOT / "target/release/tollgate"
    ports = free_ports(["http", "admin", "redis", "upstream"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "gateway.toml").write_text(CONFIG.format(**ports))
        (folder / "upstream.toml").write_text(UPSTREAM.format(**ports))
        commands = [
            ["redis-server", "--port", str(ports["redis"]), "--save", "", "--dir", folder],
            [tollgate, "run", "--config", folder / "upstream.toml"],
            [tollgate, "run", "--config", folder / "gateway.toml"],
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes = []
        try:
            for command, port in zip(commands, ["redis", "upstream", "http"]):
                processes.append(subprocess.Popen(command, **quiet))
                until_listens(ports[port])
            load(folder, ports["http"], seconds)
            # The picture shows a gateway at work.
            script = ["wrk", "-t1", "-c4", "-d20s", "-s", folder / "load.lua", f"http://127.0.0.1:{ports['http']}"]
            processes.append(subprocess.Popen(script, **quiet))
            shoot(f"http://127.0.0.1:{ports['admin']}/", file)
        finally:
            for process in reversed(processes):
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
