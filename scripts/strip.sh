#!/bin/sh
# Copies a program without its symbols, as it ships, by the tool that comes with Rust: GNU's strip destroys what BOLT has rearranged.
#
#   scripts/strip.sh PROGRAM RESULT
set -eu
# Where the compiler has its LLVM, which the tool finds by itself only beside the component llvm-tools.
LD_LIBRARY_PATH=$(rustc --print sysroot)/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
"$(rustc --print target-libdir)/../bin/rust-objcopy" --strip-all "$1" "$2"
