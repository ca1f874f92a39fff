#!/bin/sh
# Builds Tollgate for speed: with the profile of a build that was put under the load of bench/run.py, so that what each
# request needs stands together (https://doc.rust-lang.org/rustc/profile-guided-optimization.html). It needs what
# bench/run.py needs, and takes ten minutes. A plain build is `cargo build --profile dist`.
set -eu
cd "$(dirname "$0")/.."

profdata=$(rustc --print target-libdir)/../bin/llvm-profdata
if [ ! -x "$profdata" ]; then
    echo "llvm-profdata is missing: rustup component add llvm-tools" >&2
    exit 1
fi
target=${CARGO_TARGET_DIR:-$PWD/target}/profile
build() {
    RUSTFLAGS=$1 cargo build --profile dist --locked --bin tollgate --target-dir "$target"
}

rm -rf "$target/raw"
build "-Cprofile-generate=$target/raw"
# Its figures are those of a slow build: 1 says that it missed a requirement.
bench/run.py --binary "$target/dist/tollgate" --only 'tollgate-*' --rounds 1 --seconds 2 || [ $? -eq 1 ]
"$profdata" merge -o "$target/merged" "$target/raw"
# Cargo doesn't look into the file: another profile needs another name.
profile=$target/$(sha256sum "$target/merged" | cut -c -16).profdata
mv "$target/merged" "$profile"
build "-Cprofile-use=$profile"
echo "$target/dist/tollgate"
