#!/usr/bin/env bash
# Runs the real clients of other limiters beside Tollgate: Redisson's RRateLimiter, with Maven and Java.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v mvn >/dev/null; then
    echo "*** skipped, as there is no mvn on PATH: the real Redisson client ***" >&2
fi
exec cargo test --locked --test redis redisson:: -- --nocapture
