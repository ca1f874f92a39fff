#!/usr/bin/env python3
"""Checks contrib/helm and contrib/kubernetes with Helm, with the schemas of Kubernetes, and with models of Istio and the Prometheus Operator.

    interop/kubernetes/check.py TOLLGATE          checks; TOLLGATE is the program, which checks the configurations in the manifests
    interop/kubernetes/check.py TOLLGATE --write  renders the manifests of contrib/kubernetes again
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile

import helm_python
import kubernetes_validate
import yaml
from cloudcoil.models.istio.security import v1 as istio
from cloudcoil.models.prometheus_operator import v1 as operator

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "contrib/helm/tollgate"
MANIFESTS = ROOT / "contrib/kubernetes"
KUBERNETES = ["1.30", "1.33", "1.37"]
TOKENS = {"TOLLGATE_ADMIN_TOKEN": "0123456789abcdef", "TOLLGATE_METRICS_TOKEN": "fedcba9876543210"}
DECISIONS = yaml.safe_load((ROOT / "contrib/helm/decisions.yaml").read_text())
MONITORED = {"serviceMonitor": {"enabled": True}}
# Rendered files: the values, and the template if it isn't all of them.
RENDERED = {"gateway.yaml": ({}, None), "decisions.yaml": (DECISIONS, None), "servicemonitor.yaml": (MONITORED, "servicemonitor")}
MODELS = {"ServiceMonitor": operator.ServiceMonitor, "AuthorizationPolicy": istio.AuthorizationPolicy}
# Its schema is in a Go module: interop/manifests checks it.
UNCHECKED = {"SecurityPolicy"}
# Each value set to something else than its default.
EVERY_VALUE = {
    **MONITORED,
    "env": [{"name": "TOLLGATE_LOG", "value": "debug"}],
    "image": {"tag": "latest", "pullPolicy": "Always", "pullSecrets": [{"name": "registry"}]},
    "ports": {"http": 8443, "decisions": 8081, "admin": 9902},
    "replicas": 3,
    "autoscaling": {"enabled": False},
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "service": {"type": "LoadBalancer", "port": 443, "annotations": {"example.com/internal": "true"}},
    "networkPolicy": {"clients": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "monitoring": []},
    "shutdown": {"preStopSeconds": 10, "drainSeconds": 60},
    "rollOnChange": False,
    "resources": {"limits": {"cpu": "2"}},
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "edge"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "edge", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "system-cluster-critical",
}


def render(values, only=None):
    with helm_python.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="tollgate", namespace="tollgate")
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml") and (only is None or f"/{only}." in name)]
    documents = [document.strip("\n") for text in texts for document in ("\n" + text).split("\n---\n") if document.strip()]
    return "\n---\n".join(documents) + "\n"


def plain(text):
    """A rendered manifest as a file of contrib/kubernetes, which Helm doesn't manage."""
    text = re.sub(r" +$", "", text, flags=re.MULTILINE)
    return "# Rendered from contrib/helm/tollgate by interop/kubernetes/check.py.\n" + text.replace("managed-by: Helm", "managed-by: kubectl")


def check_manifest(text, tollgate, origin):
    """Checks the objects of a manifest. Returns their kinds."""
    kinds = []
    for item in yaml.safe_load_all(text):
        kind = item["kind"]
        kinds.append(kind)
        if kind in MODELS:
            MODELS[kind].model_validate(item)
        elif kind not in UNCHECKED:
            for version in KUBERNETES:
                kubernetes_validate.validate(item, version, strict=True)
        if kind == "ConfigMap":
            check_configuration(item["data"]["gateway.toml"], tollgate, origin)
    return kinds


def check_configuration(text, tollgate, origin):
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([tollgate, "check", file.name], env={**os.environ, **TOKENS}, capture_output=True, text=True)
    assert done.returncode == 0, f"{origin}: {done.stderr}"


def is_rejected(values, tollgate):
    try:
        check_manifest(render(values), tollgate, "a chart with faults")
    except Exception:  # Each tool has errors of its own.
        return True
    return False


def main(tollgate, write):
    faults = helm_python.lint(str(CHART), strict=True)["errors"]
    assert faults == [], faults
    for name, (values, only) in RENDERED.items():
        text = plain(render(values, only))
        if write:
            (MANIFESTS / name).write_text(text)
        assert (MANIFESTS / name).read_text() == text, f"contrib/kubernetes/{name} isn't what the chart renders: interop/kubernetes/check.py --write"
    kinds = []
    for manifest in sorted(MANIFESTS.glob("*.yaml")):
        kinds += check_manifest(manifest.read_text(), tollgate, manifest.name)
    for kind in ["Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "HorizontalPodAutoscaler", "NetworkPolicy", "ServiceMonitor"]:
        assert kind in kinds, f"no {kind}"

    rendered = render(EVERY_VALUE)
    check_manifest(rendered, tollgate, "the chart with every value")
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(defaults) == set(EVERY_VALUE) | {"config", "secret"}, "EVERY_VALUE lacks a value"
    deployment = next(item for item in yaml.safe_load_all(rendered) if item["kind"] == "Deployment")
    assert deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 80
    assert deployment["spec"]["replicas"] == 3
    # The checks find faults.
    assert is_rejected({"replica": 3}, tollgate)
    assert is_rejected({"resources": {"limit": {"cpu": 1}}}, tollgate)
    assert is_rejected({"config": "[admin]\nlissten = 1\n"}, tollgate)
    print(f"contrib/helm and contrib/kubernetes: {len(kinds)} objects are good")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] == ["--write"])
