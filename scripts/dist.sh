#!/bin/sh
# Builds Tollgate for speed, with the code that each request needs close together: by profile-guided optimization
# (https://doc.rust-lang.org/rustc/profile-guided-optimization.html), and, by what BOLT has counted of that, once more
# block by block (https://github.com/llvm/llvm-project/tree/main/bolt). Both are taken under the load of bench/run.py, and
# while access logs are replayed. It needs what bench/run.py needs, and takes a quarter of an hour. A plain build is
# `cargo build --profile dist`.
set -eu
cd "$(dirname "$0")/.."

profdata=$(rustc --print target-libdir)/../bin/llvm-profdata
if [ ! -x "$profdata" ]; then
    echo "llvm-profdata is missing: rustup component add llvm-tools" >&2
    exit 1
fi
bolt=$(ls -d /usr/lib/llvm-*/bin/llvm-bolt 2>/dev/null | sort -V | tail -1)
if [ ! -x "$bolt" ]; then
    echo "llvm-bolt is missing; on Debian: apt-get install bolt-19 libbolt-19-dev" >&2
    exit 1
fi
target=${CARGO_TARGET_DIR:-$PWD/target}/profile
build() {
    # BOLT would take a piece of a name in the older mangling for a mark of its own.
    RUSTFLAGS="-Csymbol-mangling-version=v0 $1" cargo build --profile dist --locked --bin tollgate --target-dir "$target"
}
access_log() {
    awk -v format="$1" 'BEGIN {
        for (line = 0; line < 100000; line++) {
            second = int(line / 50)
            time = sprintf("%02d:%02d:%02d", second / 3600, second / 60 % 60, second % 60)
            client = "10.0." line % 7 "." line * 31 % 251
            target = "/v1/orders/" line % 1000 "?page=" line % 10
            if (format == "json")
                printf "{\"time\":\"2026-01-01T%s.%03dZ\",\"client\":\"%s\",\"method\":\"GET\",\"target\":\"%s\"," \
                    "\"protocol\":\"HTTP/1.1\",\"status\":200,\"bytes\":512,\"duration_ms\":1.5}\n", time, line % 1000, client, target
            else
                printf "%s - - [01/Jan/2026:%s +0000] \"GET %s HTTP/1.1\" 200 512 \"-\" \"curl/8\"\n", client, time, target
        }
    }'
}
# Has a build that counts what it does do what matters.
train() {
    # Its figures are those of a slow build: 1 says that it missed a requirement.
    bench/run.py --binary "$1" --only 'tollgate-*' --rounds 1 --seconds 2 || [ $? -eq 1 ]
    for format in combined json; do
        access_log $format | "$1" simulate - --config gateway.toml >"$target/simulated"
    done
}

# It warns of code in assembly, which it leaves as it is.
rearrange() {
    "$bolt" "$target/dist/tollgate" "$@" >"$target/bolt.log" 2>&1 || {
        tail -n 5 "$target/bolt.log" >&2
        exit 1
    }
}

rm -rf "$target/raw"
mkdir -p "$target/raw"
build "-Cprofile-generate=$target/raw"
train "$target/dist/tollgate"
"$profdata" merge -o "$target/merged" "$target/raw"
# Cargo doesn't look into the file: another profile needs another name.
profile=$target/$(sha256sum "$target/merged" | cut -c -16).profdata
mv "$target/merged" "$profile"
build "-Cprofile-use=$profile -Clink-arg=-Wl,--emit-relocs"

rearrange -o "$target/counting" --instrument --instrumentation-file="$target/raw/bolt" --instrumentation-file-append-pid
train "$target/counting"
"${bolt%/*}/merge-fdata" "$target"/raw/bolt.* -o "$target/counted"
# The new code takes the place of the old, which would be a second copy otherwise, as it is wherever it doesn't fit.
rearrange -o "$target/tollgate" --data="$target/counted" --reorder-blocks=ext-tsp --reorder-functions=cdsort \
    --split-functions --split-all-cold --split-eh --icf=1 --use-old-text --no-huge-pages
echo "$target/tollgate"
