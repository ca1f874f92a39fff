#!/usr/bin/env python3
"""Checks Grafana's dashboard with Grafana's own types, and prints its queries as rules for promtool.

    interop/dashboard.py DASHBOARD >RULES
"""

import json
import pathlib
import re
import sys

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def lost(given, read, place=""):
    """Yields the places of what Grafana's types don't know: it is missing after they have read it."""
    if isinstance(given, dict) and isinstance(read, dict):
        for name, value in given.items():
            if name in read:
                yield from lost(value, read[name], f"{place}/{name}")
            else:
                yield f"{place}/{name}"
    elif isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        for at, (one, other) in enumerate(zip(given, read)):
            yield from lost(one, other, f"{place}/{at}")
    elif given != read:
        yield place


def faults(dashboard):
    return list(lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard)))))


def rules(dashboard):
    """The queries as rules, with values in place of Grafana's variables. JSON is YAML, too."""
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    queries = [re.sub(r"\$__(rate_)?interval", "1m", query) for query in queries]
    return {"groups": [{"name": "dashboard", "rules": [{"record": f"query:{at}", "expr": query} for at, query in enumerate(queries)]}]}


def main():
    register_default_plugins()
    text = pathlib.Path(sys.argv[1]).read_text()
    found = faults(json.loads(text))
    assert found == [], found
    # The types find faults.
    assert faults(json.loads(text.replace('"legendFormat"', '"legend_format"')))
    assert faults(json.loads(text.replace('"stacking"', '"stackin"')))
    print(json.dumps(rules(json.loads(text)), indent=1))


if __name__ == "__main__":
    main()
