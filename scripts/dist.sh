#!/bin/sh
# Builds Tollgate for speed: with the profile of a build that was put under the load of bench/run.py, and replayed access
# logs, so that what each request needs stands together
# (https://doc.rust-lang.org/rustc/profile-guided-optimization.html). It needs what bench/run.py needs, and takes ten
# minutes. A plain build is `cargo build --profile dist`.
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
for format in combined json; do
    access_log $format | "$target/dist/tollgate" simulate - --config gateway.toml >"$target/simulated"
done
"$profdata" merge -o "$target/merged" "$target/raw"
# Cargo doesn't look into the file: another profile needs another name.
profile=$target/$(sha256sum "$target/merged" | cut -c -16).profdata
mv "$target/merged" "$profile"
build "-Cprofile-use=$profile"
echo "$target/dist/tollgate"
