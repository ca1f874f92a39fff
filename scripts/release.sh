#!/usr/bin/env bash
# Makes a release in dist/: a tarball, a Debian package, a bill of materials, and their checksums.
#
#   scripts/release.sh           builds with scripts/dist.sh, which takes half an hour
#   scripts/release.sh PROGRAM   packages a program that is already built
#
# The program needs a glibc as new as the newest symbol that it uses, which the package says. Build it on Debian 12, so that it runs there and on all
# that is newer. The same program and commit give the same packages, byte for byte.
set -euo pipefail
cd "$(dirname "$0")/.."
umask 022
export LC_ALL=C
TOLLGATE_COMMIT=${TOLLGATE_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || true)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat --format=%Y Cargo.lock)}
export TOLLGATE_COMMIT SOURCE_DATE_EPOCH
# The most bytes of a stripped program.
MOST_BYTES=$((20 * 1000 * 1000))
MAINTAINER=${TOLLGATE_MAINTAINER:-The Tollgate authors <tollgate@example.org>}

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
# An upgrade in tests needs a second version.
version=${TOLLGATE_RELEASE:-$version}
machine=$(uname -m)
architecture=$(dpkg --print-architecture)
dist=$PWD/dist
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT

if [ $# -eq 0 ]; then
    program=$(scripts/dist.sh | tail -n 1)
else
    program=$1
fi
scripts/strip.sh "$program" "$work/tollgate"
bytes=$(stat --format=%s "$work/tollgate")
# A debug build, which tests package, has no optimization.
if [ "$bytes" -gt "$MOST_BYTES" ] && ! "$work/tollgate" --version | grep --quiet '^build: .*, debug,'; then
    echo "the program has $bytes bytes, more than $MOST_BYTES" >&2
    exit 1
fi
mkdir -p "$dist"
glibc=$(objdump --dynamic-syms "$work/tollgate" | grep --only-matching 'GLIBC_[0-9.]*' | sort --unique --version-sort | tail -n 1 | cut --delimiter=_ --fields=2)

# What both packages contain, below a prefix.
install_shared() {
    local prefix=$1 shell
    install -D -m 755 "$work/tollgate" "$prefix/bin/tollgate"
    mkdir -p "$prefix/share/man/man1"
    "$work/tollgate" man "$prefix/share/man/man1"
    while read -r shell file; do
        mkdir -p "$(dirname "$prefix/share/$file")"
        "$work/tollgate" completions "$shell" >"$prefix/share/$file"
    done <<FILES
bash bash-completion/completions/tollgate
zsh zsh/site-functions/_tollgate
fish fish/vendor_completions.d/tollgate.fish
FILES
}

# The configuration to begin with: gateway.toml, and an admin port on loopback.
install_configuration() {
    mkdir -p "$1"
    cp gateway.toml "$1/gateway.toml"
    printf '\n# The dashboard, the API and metrics: http://127.0.0.1:9901\n[admin]\nlisten = "${TOLLGATE_ADMIN:-127.0.0.1:9901}"\n' >>"$1/gateway.toml"
}

# Gives all files of a folder the time of the commit.
set_times() {
    find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +
}

scripts/dependencies.py "$work/LICENSES" "$work/sbom.cdx.json"

tarball() {
    local name=tollgate-$version-$machine-linux
    local root=$work/$name
    install_shared "$root"
    install_configuration "$root/etc"
    mkdir -p "$root/systemd" "$root/logrotate" "$root/monitoring"
    cp contrib/systemd/tollgate.service contrib/systemd/tollgate.socket "$root/systemd"
    cp contrib/debian/logrotate "$root/logrotate/tollgate"
    cp contrib/grafana/tollgate.json contrib/prometheus/alerts.yml "$root/monitoring"
    cp LICENSE CHANGELOG.md "$work/LICENSES" "$work/sbom.cdx.json" docs/install.md "$root"
    set_times "$root"
    tar --create --sort=name --owner=0 --group=0 --numeric-owner --directory "$work" "$name" | gzip --no-name -9 >"$dist/$name.tar.gz"
}

package() {
    local root=$work/deb documents=$work/deb/usr/share/doc/tollgate
    install_shared "$root/usr"
    # Debian's zsh and fish look there.
    mkdir -p "$root/usr/share/zsh/vendor-completions"
    mv "$root/usr/share/zsh/site-functions/_tollgate" "$root/usr/share/zsh/vendor-completions/_tollgate"
    rmdir "$root/usr/share/zsh/site-functions"
    gzip --no-name -9 "$root"/usr/share/man/man1/*
    install_configuration "$root/etc/tollgate"
    install -D -m 644 contrib/debian/logrotate "$root/etc/logrotate.d/tollgate"
    mkdir -p "$root/lib/systemd/system" "$documents" "$root/DEBIAN"
    sed 's#/usr/local/bin/tollgate#/usr/bin/tollgate#' contrib/systemd/tollgate.service >"$root/lib/systemd/system/tollgate.service"
    cp contrib/systemd/tollgate.socket "$root/lib/systemd/system/"
    cp contrib/debian/copyright "$work/sbom.cdx.json" "$documents"
    gzip --no-name -9 --stdout CHANGELOG.md >"$documents/NEWS.gz"
    gzip --no-name -9 >"$documents/changelog.gz" <<CHANGES
tollgate ($version) stable; urgency=medium

  * See NEWS.gz in this folder.

 -- $MAINTAINER  $(date --utc --date="@$SOURCE_DATE_EPOCH" '+%a, %d %b %Y %H:%M:%S +0000')
CHANGES
    gzip --no-name -9 --stdout "$work/LICENSES" >"$documents/LICENSES.gz"
    cp contrib/debian/postinst contrib/debian/prerm contrib/debian/postrm "$root/DEBIAN"
    printf '/etc/tollgate/gateway.toml\n/etc/logrotate.d/tollgate\n' >"$root/DEBIAN/conffiles"
    (cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort --zero-terminated | xargs --null md5sum) >"$work/md5sums"
    mv "$work/md5sums" "$root/DEBIAN/md5sums"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: tollgate
Version: $version
Architecture: $architecture
Section: httpd
Priority: optional
Maintainer: $MAINTAINER
Installed-Size: $(du --summarize --block-size=1024 "$root" | cut --fields=1)
Depends: libc6 (>= $glibc), libgcc-s1, passwd
Recommends: ca-certificates, logrotate
Suggests: redis-server
Description: HTTP gateway with exact distributed rate limits
 Tollgate maps requests to limits by a file, forwards those that are
 admitted, and rejects the others with 429 and the time at which to retry.
 Gateways on one Redis share their counts. It also decides for Envoy, nginx,
 Traefik and Caddy.
CONTROL
    set_times "$root"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$dist/tollgate_${version}_$architecture.deb" >/dev/null
}

tarball
package
cp "$work/sbom.cdx.json" "$dist/tollgate-$version.cdx.json"
(cd "$dist" && sha256sum "tollgate-$version-$machine-linux.tar.gz" "tollgate_${version}_$architecture.deb" "tollgate-$version.cdx.json") >"$dist/SHA256SUMS"
cat "$dist/SHA256SUMS"
