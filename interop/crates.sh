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
# Links to what is private help those who read the code, and are plain text in the public documentation.
RUSTDOCFLAGS="-Dwarnings -Arustdoc::private-intra-doc-links" cargo doc --quiet --locked --no-deps --workspace

echo "==> cargo package"
# The libraries are built from their packages alone. The gateway needs them from a registry for that, so its files are listed only.
cargo package --quiet --locked --allow-dirty --package tollgate-http1 --package tollgate-routing --package tollgate-limiter
cargo package --quiet --locked --allow-dirty --package tollgate --list >/dev/null
