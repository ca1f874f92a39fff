#!/usr/bin/env bash
# Runs the project's checks.
#
#   scripts/test.sh          all of them but interop
#   scripts/test.sh interop  what is made by others: Redis 6.2 and 8, Valkey; Redisson's client and Spring Cloud Gateway with Maven; Envoy Gateway's server with Go; linters and schemas for contrib/, the Dockerfile and the
#                            dependencies; features and packages of each crate; the Debian package in a root of its own. A part alone:
#                            scripts/test.sh interop contrib
#   scripts/test.sh quick    format, clippy, unit tests and one test of the gateway: what to run after each change
#
# The whole installs what is missing of the programs that the tests start, since they use real ones: redis-server
# (7.0 or later: the tests start Clusters), lua5.4, haproxy, nginx, curl, openssl, h2load, wrk, chromium with its driver,
# unshare, and Python, with clients of WebSocket and gRPC, and with Envoy, Traefik and Caddy, in target/venv.
set -euo pipefail
cd "$(dirname "$0")/.."
# Where Debian keeps servers.
PATH=$PATH:/usr/sbin

step() {
    echo "==> $*"
    "$@"
}

# Installs a package, which dnf and brew may know by another name.
install_package() {
    local package=$1 elsewhere=$2 sudo=()
    if [ "$(id -u)" -ne 0 ] && command -v sudo >/dev/null; then
        sudo=(sudo)
    fi
    if command -v apt-get >/dev/null; then
        step "${sudo[@]}" apt-get update
        step "${sudo[@]}" apt-get install --yes --no-install-recommends "$package"
    elif command -v dnf >/dev/null; then
        step "${sudo[@]}" dnf install --assumeyes "$elsewhere"
    elif command -v brew >/dev/null; then
        step brew install "$elsewhere"
    fi
}

# Installs the package of a command that is missing.
require_command() {
    local command=$1 package=$2 elsewhere=$3
    if command -v "$command" >/dev/null; then
        return
    fi
    install_package "$package" "$elsewhere"
    if ! command -v "$command" >/dev/null; then
        echo "no $command on PATH: install $elsewhere with your system's package manager" >&2
        exit 1
    fi
}

# Installs the clients that are written in Python into an environment of their own, unless it has them.
require_python_clients() {
    local venv=target/venv requirements=tests/proxy/clients/requirements.txt
    if cmp --silent "$requirements" "$venv/requirements.txt"; then
        return
    fi
    # Debian's python3 comes without what makes environments.
    python3 -c 'import ensurepip' 2>/dev/null || install_package python3-venv python3
    step python3 -m venv --clear "$venv"
    step "$venv/bin/pip" install --quiet --require-hashes --only-binary :all: --requirement "$requirements"
    cp "$requirements" "$venv/requirements.txt"
}

# cargo finds rustfmt and clippy in the toolchain, which may have come without them.
require_component() {
    if cargo "$1" --version >/dev/null 2>&1; then
        return
    fi
    if ! command -v rustup >/dev/null; then
        echo "no cargo $1: install it with your Rust toolchain's package manager" >&2
        exit 1
    fi
    step rustup component add "$2"
}

case ${1:-all} in
all) ;;
quick)
    require_component fmt rustfmt
    require_component clippy clippy
    step cargo fmt --check
    step cargo clippy --workspace --all-targets --locked -- -D warnings
    step cargo test --quiet --locked --workspace --lib
    step cargo test --quiet --locked --test gateway gateway::routes::
    echo "==> quick checks passed; scripts/test.sh runs the rest"
    exit
    ;;
interop)
    step interop/run.sh "${@:2}"
    exit
    ;;
*)
    echo "usage: $0 [quick|interop [PART]]" >&2
    exit 2
    ;;
esac

require_command redis-server redis-server redis
require_command lua5.4 lua5.4 lua
require_command curl curl curl
require_command haproxy haproxy haproxy
require_command chromium chromium chromium
require_command chromedriver chromium-driver chromedriver
require_command nginx nginx-light nginx
require_command openssl openssl openssl
require_command h2load nghttp2-client nghttp2
require_command wrk wrk wrk
require_command unshare util-linux util-linux
if ! unshare --mount --map-root-user mount --bind /dev/null /etc/hosts; then
    echo "no mount namespaces, in which names get other addresses: allow them, on Ubuntu with" >&2
    echo "sysctl kernel.apparmor_restrict_unprivileged_userns=0, or run this as root" >&2
    exit 1
fi
require_command python3 python3 python3
require_python_clients
require_component fmt rustfmt
require_component clippy clippy

step cargo fmt --check
step cargo test --locked --workspace --no-run

# Runs clippy, and builds the fuzz targets, which are a workspace of their own with the versions of this one.
lint() {
    step cargo clippy --workspace --all-targets --test timing --locked -- -D warnings
    cp Cargo.lock fuzz/
    step cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target
}

# Most tests wait for other processes. So more of them run at a time than there are cores, and clippy uses what they leave, once
# Cargo has looked whether they are built.
set -m
(renice -n 19 $BASHPID && sleep 3 && lint) >target/lint.log 2>&1 &
lint=$!
set +m
trap 'kill -- -$lint 2>/dev/null || true' EXIT
RUST_TEST_THREADS=$((2 * $(getconf _NPROCESSORS_ONLN))) step cargo test --locked --workspace
if ! wait $lint; then
    cat target/lint.log
    exit 1
fi
trap - EXIT
# Tests that judge time run alone, and one after the other: Cargo.toml leaves them out of the default targets.
step cargo test --locked --test timing -- --test-threads=1

if ! command -v mvn >/dev/null; then
    echo "==> skipped, as there is no mvn: the real Redisson client and Spring Cloud Gateway beside gateways"
    echo "    install Maven, which brings Java: apt-get install maven, dnf install maven, or brew install maven"
fi
if command -v docker-compose >/dev/null; then
    step docker-compose config -q
elif docker compose version >/dev/null 2>&1; then
    step docker compose config -q
else
    echo "==> skipped, as there is no docker-compose: docker-compose config -q"
fi
echo "==> all checks passed"
