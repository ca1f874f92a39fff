#!/bin/sh
# Builds Tollgate for speed, with the code that each request needs close together: by profile-guided optimization
# (https://doc.rust-lang.org/rustc/profile-guided-optimization.html), and, by what BOLT has counted of that, once more
# block by block (https://github.com/llvm/llvm-project/tree/main/bolt). Both are taken under the load of bench/train.py, which
# has a part of everything and is no benchmark. On Debian it needs
#
#     rustup component add llvm-tools
#     apt-get install bolt-19 libbolt-19-dev nginx-light nghttp2-client python3 redis-server wrk
#
# and takes half an hour. A plain build is `cargo build --profile dist`.
set -eu
cd "$(dirname "$0")/.."
# Where Debian keeps nginx.
PATH=$PATH:/usr/sbin

for program in h2load nginx python3 redis-server wrk; do
    if ! command -v $program >/dev/null; then
        echo "$program is missing: see the beginning of $0" >&2
        exit 1
    fi
done
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
bench/train.py "$target/dist/tollgate"
"$profdata" merge -o "$target/merged" "$target/raw"
# Cargo doesn't look into the file: another profile needs another name.
profile=$target/$(sha256sum "$target/merged" | cut -c -16).profdata
mv "$target/merged" "$profile"
build "-Cprofile-use=$profile -Clink-arg=-Wl,--emit-relocs"

rearrange -o "$target/counting" --instrument --instrumentation-file="$target/raw/bolt" --instrumentation-file-append-pid
bench/train.py "$target/counting"
"${bolt%/*}/merge-fdata" "$target"/raw/bolt.* -o "$target/counted"
# The new code takes the place of the old, which would be a second copy otherwise, as it is wherever it doesn't fit.
rearrange -o "$target/tollgate" --data="$target/counted" --reorder-blocks=ext-tsp --reorder-functions=cdsort \
    --split-functions --split-all-cold --split-eh --icf=1 --use-old-text --no-huge-pages
echo "$target/tollgate"
