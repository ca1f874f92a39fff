#!/usr/bin/env bash
# Checks the declared Rust version, each feature alone, each crate without the others, that the documentation of each crate builds without
# warnings, and that each crate builds from its package.
set -euo pipefail
cd "$(dirname "$0")/.."

metadata() {
    cargo metadata --locked --no-deps --format-version 1 | python3 -c "import json, sys
packages = json.load(sys.stdin)['packages']
$1"
}

# All crates declare one version, which is the oldest that builds them. CI's is that one; elsewhere, rustup fetches it.
declared=$(metadata '[declared] = {package["rust_version"] for package in packages}; print(declared)')
case $(cargo --version) in
"cargo $declared."*) echo "==> Rust $declared is the declared one, and does all that follows" ;;
*)
    if command -v rustup >/dev/null && rustup toolchain install --profile minimal --no-self-update "$declared" >/dev/null 2>&1; then
        echo "==> cargo +$declared check"
        CARGO_TARGET_DIR=target/declared cargo "+$declared" check --quiet --locked --workspace --all-targets
    else
        echo "*** skipped, as this is $(cargo --version), and rustup doesn't provide $declared: the declared version of Rust ***" >&2
    fi
    ;;
esac

# None of the features, and each alone.
metadata 'for package in packages:
    for feature in ["", *sorted(package["features"])]:
        print(package["name"], feature)' | while read -r package feature; do
    echo "==> cargo check $package, ${feature:-no feature}"
    cargo check --quiet --locked --package "$package" --no-default-features --features "$feature" </dev/null
done

# Each crate by itself, as the documents have examples run: what another crate of the workspace asks for isn't there.
metadata 'for package in packages: print(package["name"])' | while read -r package; do
    echo "==> cargo check $package, all targets and features"
    cargo check --quiet --locked --package "$package" --all-features --all-targets </dev/null
done

echo "==> cargo doc"
# Links to what is private help those who read the code, and are plain text in the public documentation.
RUSTDOCFLAGS="-Dwarnings -Arustdoc::private-intra-doc-links" cargo doc --quiet --locked --no-deps --workspace

echo "==> cargo package"
# Each crate is built from its package alone, with the packages of the others in place of a registry's: in a copy, because Cargo takes none for crates that
# may not be published.
copy=$(mktemp -d)
trap 'rm -r "$copy"' EXIT
tar --create --exclude=./target --exclude=./dist --exclude=./.git . | tar --extract --directory "$copy"
sed -i '/^publish = false$/d' "$copy"/Cargo.toml "$copy"/crates/*/Cargo.toml
target=${CARGO_TARGET_DIR:-$PWD/target}
# Their versions are those of the run before, whose sources and builds Cargo would take for them.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/{cache,src}/-*/tollgate-* "$target"/debug/.fingerprint/tollgate-{config,http1,limiter,routing}-*
CARGO_TARGET_DIR=$target cargo package --quiet --locked --workspace --manifest-path "$copy/Cargo.toml"
