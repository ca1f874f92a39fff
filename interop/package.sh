#!/usr/bin/env bash
# Packages a program as release.sh does, and tests the packages in a Debian 12 of their own: installed, started, queried, reloaded, upgraded under
# load, removed and purged (interop/package/check.py), and runs the Dockerfile's stages there. It needs root, for chroot.
#
#   interop/package.sh [PROGRAM [OLDER]]
#
# PROGRAM is the development build by default. OLDER is what it is upgraded from: a program of an earlier commit, or PROGRAM itself by default.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin
program=${1:-target/debug/tollgate}
older=${2:-$program}
if [ "$(id --user)" -ne 0 ]; then
    echo "*** skipped, as it needs root: the tests of the Debian package ***" >&2
    exit
fi
for package in debootstrap lintian haproxy redis-server systemd-container; do
    if ! dpkg --status "$package" >/dev/null 2>&1; then
        apt-get install --yes --no-install-recommends "$package"
    fi
done
[ $# -gt 0 ] || cargo build --quiet --locked --bin tollgate

base=target/bookworm
if [ ! -e "$base/complete" ]; then
    rm -rf "$base"
    debootstrap --variant=minbase --include=ca-certificates,logrotate,systemd,systemd-sysv,dbus,curl,procps bookworm "$base"
    touch "$base/complete"
fi
root=$PWD/target/package-root
rm -rf "$root"
cp --archive "$base" "$root"
trap 'rm -rf "$root" "$PWD/target/image-root" "$PWD/target/image-build"' EXIT

TOLLGATE_RELEASE=0.0.9 scripts/release.sh "$older" >/dev/null
cp dist/tollgate_0.0.9_*.deb target/older.deb
rm dist/*0.0.9*
scripts/release.sh "$program" >/dev/null
(cd dist && sha256sum --quiet --check SHA256SUMS)
first=$(sha256sum dist/*.deb dist/*.tar.gz)
scripts/release.sh "$program" >/dev/null
if [ "$first" != "$(sha256sum dist/*.deb dist/*.tar.gz)" ]; then
    echo "packages of the same program differ" >&2
    exit 1
fi
cp target/older.deb "$root/older.deb"
cp dist/*.deb "$root/newer.deb"
cp dist/*.tar.gz "$root/release.tar.gz"
image=$PWD/target/image-root
rm -rf "$image" "$PWD/target/image-build"
cp --archive "$base" target/image-build
interop/package/image.sh "$program" "$PWD/target/image-build" "$image"
lintian --fail-on error,warning dist/*.deb
# A network of its own, where ports are free.
unshare --net --mount --pid --fork --kill-child python3 interop/package/check.py "$root" "$image"

# And under a real systemd, where one can be booted.
cp interop/package/systemd.sh "$root/check.sh"
cat >"$root/etc/systemd/system/check.service" <<UNIT
[Unit]
After=multi-user.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/check.sh
StandardOutput=file:/check.log
StandardError=file:/check.log
TimeoutStartSec=300
UNIT
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/check.service"
timeout 400 systemd-nspawn --quiet --directory "$root" --register=no --keep-unit --boot --private-network </dev/null >"$root/boot.log" 2>&1 || true
if [ ! -s "$root/check.log" ]; then
    tail -n 5 "$root/boot.log" >&2
    echo "*** skipped, as systemd can't be booted in a container here: the units of the Debian package ***" >&2
elif [ "$(cat "$root/result" 2>/dev/null)" != passed ]; then
    tail -n 30 "$root/check.log" >&2
    exit 1
else
    echo "systemd: installed, reloaded, upgraded under load ($(grep -c asked "$root/load") requests), logs rotated, purged"
fi
