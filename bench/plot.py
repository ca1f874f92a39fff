"""A drawing of the CPU time per request, as SVG."""

from html import escape

from cases import of_dist
from report import medians

GROUPS = {
    "proxy, no limit": ["haproxy-tcp", "nginx-proxy", "tollgate-proxy"],
    "limit in the process": ["nginx-limit", "haproxy-limit", "tollgate-memory"],
    "Redis, one key": ["openresty-one-key", "tollgate-redis-one-key"],
    "Redis, 10,000 keys": ["openresty-many-keys", "tollgate-redis-many-keys"],
    "Redis, one key, refused": ["openresty-refused", "tollgate-redis-refused"],
    "refused in the process": ["nginx-refused", "tollgate-memory-refused"],
    "HTTP/2 in, no limit": ["nginx-http2", "tollgate-http2"],
}
NAMES = {
    "haproxy-tcp": "HAProxy, tcp mode",
    "haproxy": "HAProxy",
    "nginx": "nginx",
    "openresty": "OpenResty",
    "tollgate": "Tollgate",
    "dist": "Tollgate, dist",
}
OURS = NAMES["tollgate"], NAMES["dist"]

WIDTH, LEFT, RIGHT = 760, 130, 70
BAR, GAP, HEAD = 16, 5, 30

STYLE = """\
text { font: 12px sans-serif; fill: #57606a } .group { font-weight: bold; fill: #1f2328 } .gateway { fill: #8c959f }
.ours { fill: #1f6feb } .redis { fill: #d4502a }
@media (prefers-color-scheme: dark) { text { fill: #9da7b3 } .group { fill: #e6edf3 } .ours { fill: #58a6ff }
.redis { fill: #f0883e } }"""


def drawing(results):
    """Returns the drawing of all groups that were measured; empty if there are none."""
    groups = {title: bars(results, names) for title, names in GROUPS.items()}
    groups = {title: rows for title, rows in groups.items() if rows}
    if not groups:
        return ""
    most = max(gateway + redis for rows in groups.values() for _, gateway, redis in rows)
    parts, top = [], 4
    for title, rows in groups.items():
        parts.append(text(0, top + 18, title, "group"))
        top += HEAD
        for name, gateway, redis in rows:
            parts += bar(top, name, gateway, redis, (WIDTH - LEFT - RIGHT) / most)
            top += BAR + GAP
    parts += legend(top + 14)
    height = top + 36
    label = "CPU microseconds per request of Tollgate and its peers"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{label}">',
        f"<style>{STYLE}</style>",
        *parts,
        "</svg>\n",
    ])


def bars(results, names):
    """Returns name and CPU times of gateway and Redis for each valid row, and for the same row of the dist build."""
    names = names + [of_dist(name) for name in names if name.startswith("tollgate")]
    known = [(name, medians(results[name])) for name in names if name in results]
    return [(name_of(name), figures["gateway_us"], figures["redis_us"]) for name, figures in known if figures]


def name_of(row):
    return NAMES.get(row) or NAMES[row.partition("-")[0]]


def bar(top, name, gateway, redis, scale):
    """Returns one line: a bar of two parts, with its name and its sum."""
    middle = top + BAR - 4
    kind = "ours" if name in OURS else "gateway"
    parts = [text(LEFT - 8, middle, name, end=True), box(LEFT, top, gateway * scale, kind)]
    if redis * scale >= 0.5:
        parts.append(box(LEFT + gateway * scale, top, redis * scale, "redis"))
    return [*parts, text(LEFT + (gateway + redis) * scale + 6, middle, f"{gateway + redis:.1f}")]


def legend(top):
    """Returns the legend."""
    parts, left = [], LEFT
    for kind, meaning in [("gateway", "a peer"), ("ours", "Tollgate"), ("redis", "Redis, for it")]:
        parts += [box(left, top, BAR, kind), text(left + BAR + 6, top + BAR - 4, meaning)]
        left += 110
    return [*parts, text(left, top + BAR - 4, "CPU µs a request: shorter is better")]


def box(left, top, width, kind):
    return f'<rect class="{kind}" x="{left:.1f}" y="{top}" width="{width:.1f}" height="{BAR}"/>'


def text(left, base, words, kind="", end=False):
    kind = f' class="{kind}"' if kind else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text{kind} x="{left:.1f}" y="{base}"{anchor}>{escape(words)}</text>'
