#!/bin/sh
# Copies a program without its symbols, as it ships, by the tool that comes with Rust: GNU's strip destroys what BOLT has rearranged.
#
#   scripts/strip.sh PROGRAM RESULT
set -eu
"$(rustc --print target-libdir)/../bin/rust-objcopy" --strip-all "$1" "$2"
