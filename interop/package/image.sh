#!/usr/bin/env bash
# Runs the commands of the Dockerfile's stages in a Debian 12 of their own, as no engine is needed for that. What compiles is left out: PROGRAM is its result.
#
#   interop/package/image.sh PROGRAM DEBIAN RESULT    DEBIAN is a fresh root, which is changed; RESULT gets the files of the image
set -euo pipefail
program=$1 root=$2 result=$3

# Prints the commands of a stage.
stage() {
    awk -v stage="$1" '
        /^FROM / { is_in = $NF == stage }
        is_in && sub(/^RUN /, "") { is_run = 1 }
        is_run { print; is_run = /\\$/ }' Dockerfile
}

# Runs commands as the engine would, with this machine's Rust in place of the base image's.
in_stage() {
    [ -n "$1" ] || { echo "the Dockerfile has no such stage" >&2; exit 1; }
    # shellcheck disable=SC2016
    unshare --mount sh -euc '
        mount --bind "$1" "$2/usr/local"
        mount --bind /proc "$2/proc"
        mount --bind /dev "$2/dev"
        exec chroot "$2" env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin sh -euc "cd /build; $3"' - "$(rustc --print sysroot)" "$root" "$1"
}

mkdir "$root/build"
tar --create --exclude=./target --exclude=./.git . | tar --extract --directory "$root/build"
cp "$program" "$root/build/tollgate"

# What scripts/dist.sh needs can be installed. The component of Rust comes from elsewhere, and the packages are large.
cp /etc/resolv.conf "$root/etc/resolv.conf"
packages=$(stage dist | sed -e '/^scripts/,$d' -e 's/rustup component add [^ ]*/true/' -e 's/apt-get install/apt-get install --simulate/')
in_stage "$packages" >"$root/packages"
grep --quiet '^Inst bolt-19 ' "$root/packages"

in_stage "$(stage files)"
mv "$root/image" "$result"
echo "image: the stages' commands run, apart from the compilation"
