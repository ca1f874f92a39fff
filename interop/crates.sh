#!/usr/bin/env bash
# Checks each feature alone, that the documentation of each crate builds without warnings, and that each crate can be packaged.
set -euo pipefail
cd "$(dirname "$0")/.."

check() {
    echo "==> cargo check $*"
    cargo check --quiet --locked "$@"
}

check --package tollgate --no-default-features
check --package tollgate --no-default-features --features commands
check --package tollgate --no-default-features --features opentelemetry
check --package tollgate-limiter --no-default-features
check --package tollgate-limiter --no-default-features --features redis
check --package tollgate-limiter --no-default-features --features layer
check --package tollgate-http1 --no-default-features
check --package tollgate-routing --no-default-features

echo "==> cargo doc"
RUSTDOCFLAGS=-Dwarnings cargo doc --quiet --locked --no-deps --workspace

echo "==> cargo package"
# Their contents are complete: each crate is built from its package alone.
for crate in tollgate-http1 tollgate-routing tollgate-limiter tollgate; do
    cargo package --quiet --locked --allow-dirty --no-verify --package "$crate" --list >/dev/null
done
cargo package --quiet --locked --allow-dirty --workspace --exclude-lockfile
