#!/bin/sh
# Makes the files of the container image: the program, the shared libraries that it needs, root certificates, and a configuration.
# There is no shell and no package manager in it.
#
#   scripts/image-root.sh PROGRAM FOLDER
#
# It runs in the build stage of the Dockerfile, on Debian with ca-certificates.
set -eu
program=$1 root=$2
cd "$(dirname "$0")/.."

mkdir -p "$root/usr/local/bin" "$root/bin" "$root/etc/ssl/certs" "$root/etc/tollgate" "$root/tmp"
chmod 1777 "$root/tmp"
install -m 755 "$program" "$root/usr/local/bin/tollgate"
# It stands in for envoyproxy/ratelimit, whose program is there.
ln -sf ../usr/local/bin/tollgate "$root/bin/ratelimit"
# With the links that they are reached by.
for library in $(ldd "$program" | grep -o '/[^ ]*'); do
    mkdir -p "$root$(dirname "$library")"
    cp -L "$library" "$root$library"
done
# For Redis and upstreams with TLS.
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
# The gateway listens on all addresses of the container (TOLLGATE_LISTEN), and answers health checks on its loopback.
cp gateway.toml "$root/etc/tollgate/gateway.toml"
printf '\n[admin]\nlisten = "${TOLLGATE_ADMIN:-127.0.0.1:9901}"\n' >>"$root/etc/tollgate/gateway.toml"
echo 'tollgate:x:65532:65532::/nonexistent:/usr/sbin/nologin' >"$root/etc/passwd"
echo 'tollgate:x:65532:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
