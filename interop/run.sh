#!/usr/bin/env bash
# Runs what others made: servers that speak Redis's protocol, the real clients of other limiters beside Tollgate (Redisson's
# RRateLimiter and Spring Cloud Gateway, with Maven and Java), Envoy Gateway's management server (with Go), tools that check the files that
# Tollgate is installed with (some with Go), and Debian's, which install its package.
#
#   interop/run.sh [stores|redisson|envoy|contrib|crates|package]    one of the parts alone
set -euo pipefail
cd "$(dirname "$0")/.."

redisson() {
    if ! command -v mvn >/dev/null; then
        echo "*** skipped, as there is no mvn on PATH: the real Redisson client and Spring Cloud Gateway ***" >&2
        echo "install Maven, which brings Java: apt-get install maven, dnf install maven, or brew install maven" >&2
    fi
    export TOLLGATE_INTEROP_SECONDS=${TOLLGATE_INTEROP_SECONDS:-60}
    cargo test --locked --test redis redisson:: -- --nocapture
}

envoy() {
    if ! command -v go >/dev/null; then
        echo "*** skipped, as there is no go on PATH: the real go-control-plane server ***" >&2
        return
    fi
    cargo test --locked --test gateway decisions::go:: -- --nocapture
}

if [ $# -eq 0 ]; then
    for part in stores redisson envoy contrib crates package; do
        echo "==> interop: $part"
        interop/run.sh "$part"
    done
    exit
fi
case $1 in
redisson) redisson ;;
envoy) envoy ;;
stores | contrib | crates | package) "interop/$1.sh" ;;
*)
    echo "usage: $0 [stores|redisson|envoy|contrib|crates|package]" >&2
    exit 2
    ;;
esac
