#!/usr/bin/env python3
"""Writes what is in the program besides Tollgate: licences as text, and a bill of materials (CycloneDX 1.5).

    scripts/dependencies.py LICENSES SBOM
"""

import json
import os
import pathlib
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]
TARGET = "x86_64-unknown-linux-gnu"


def packages():
    """The packages that are compiled into the program, by name and version."""
    metadata = ["cargo", "metadata", "--format-version=1", "--locked", f"--filter-platform={TARGET}"]
    metadata = json.loads(subprocess.run(metadata, cwd=ROOT, check=True, capture_output=True).stdout)
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    found, waiting = set(), [metadata["resolve"]["root"]]
    while waiting:
        package = waiting.pop()
        if package not in found:
            found.add(package)
            # Without those that only builds and tests need.
            normal = [dep["pkg"] for dep in nodes[package]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            waiting += normal
    return sorted((p for p in metadata["packages"] if p["id"] in found), key=lambda p: (p["name"], p["version"]))


def licence_texts(package):
    folder = pathlib.Path(package["manifest_path"]).parent
    names = ("licen", "copying", "copyright", "notice", "unlicense")
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name.lower().startswith(names))
    return [(file.name, file.read_text(errors="replace").strip()) for file in files]


def licences(found):
    """Each licence text once, under the packages that have it."""
    owners = {}
    for package in found:
        title = f"{package['name']} {package['version']} ({package['license'] or 'see its licence file'})"
        for _, text in licence_texts(package) or [("", f"No licence file. Authors: {', '.join(package['authors']) or 'not named'}.")]:
            owners.setdefault(text, []).append(title)
    line = "-" * 80
    parts = [f"{line}\n" + "\n".join(titles) + f"\n{line}\n\n{text}\n" for text, titles in sorted(owners.items(), key=lambda item: item[1])]
    return "The program contains these libraries.\n\n" + "\n".join(parts)


def component(package, checksums):
    name, version = package["name"], package["version"]
    described = {"type": "library", "bom-ref": f"{name}@{version}", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
    if package["license"]:
        described["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum := checksums.get((name, version)):
        described["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return described


def bill(found):
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in locked}
    program = next(package for package in found if package["name"] == "tollgate")
    subject = component(program, checksums) | {"type": "application"}
    metadata = {"component": subject}
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        utc = subprocess.run(["date", "--utc", f"--date=@{epoch}", "+%Y-%m-%dT%H:%M:%SZ"], check=True, capture_output=True, text=True)
        metadata["timestamp"] = utc.stdout.strip()
    components = [component(package, checksums) for package in found if package is not program]
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": metadata, "components": components}


def main(licences_file, bill_file):
    found = packages()
    pathlib.Path(licences_file).write_text(licences(found))
    pathlib.Path(bill_file).write_text(json.dumps(bill(found), indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
