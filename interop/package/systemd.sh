#!/bin/sh
# Runs in a booted Debian with systemd (interop/package.sh boots it): the package's units, with the isolation that they ask for.
set -eux

answer() {
    curl --silent --show-error --include --max-time 30 http://127.0.0.1:8080/
}
has_rate() {
    answer | grep -q "\"per-client\";q=$1;w=10"
}
until_true() {
    for _ in $(seq 300); do
        if "$@"; then return; fi
        sleep 0.1
    done
    echo "timeout: $*"
    exit 1
}
# `!` before a command would not end the script if the command succeeds.
refuse() {
    if "$@"; then
        echo "succeeded: $*"
        exit 1
    fi
}

dpkg --install /older.deb
systemctl is-active tollgate.socket tollgate.service
systemctl is-enabled tollgate.socket tollgate.service
test "$(ps -o user= "$(systemctl show --value --property MainPID tollgate)")" = tollgate
for _ in 1 2 3 4 5; do answer | grep -q '^HTTP/1.1 200'; done
answer | grep -q '^HTTP/1.1 429'

# An invalid file fails the reload, and nothing changes.
cp /etc/tollgate/gateway.toml /valid.toml
echo 'nonsense = 1' >>/etc/tollgate/gateway.toml
refuse systemctl reload tollgate
sed 's#5/10s#1000000/10s#' /valid.toml >/etc/tollgate/gateway.toml
systemctl reload tollgate
until_true has_rate 1000000

# Clients that connect while the package is upgraded wait, and none fails.
(
    set +x
    while [ ! -e /ended ]; do
        answer | grep -q '^HTTP/1.1 200' || echo failed
        echo asked
    done >/load 2>&1
) &
load=$!
until_true sh -c 'test "$(wc -l </load)" -gt 50'
before=$(systemctl show --value --property MainPID tollgate)
dpkg --force-confold --install /newer.deb
until_true systemctl is-active tollgate.service
test "$before" != "$(systemctl show --value --property MainPID tollgate)"
asked=$(wc -l </load)
until_true sh -c "test \"\$(wc -l </load)\" -gt $((asked + 50))"
touch /ended
wait "$load"
refuse grep -v asked /load
has_rate 1000000

# A log that is rotated while the service runs goes on in a new file.
sed -i '1i [access_log]\npath = "/var/log/tollgate/access.log"\n' /etc/tollgate/gateway.toml
systemctl restart tollgate
until_true has_rate 1000000
until_true test -s /var/log/tollgate/access.log
logrotate --force /etc/logrotate.d/tollgate
until_true test -s /var/log/tollgate/access.log.1
answer >/dev/null
until_true test -s /var/log/tollgate/access.log

dpkg --remove tollgate
refuse systemctl is-active tollgate.service
dpkg --purge tollgate
test -z "$(find / -xdev -name '*tollgate*' -not -path '/tarball/*' -not -path '/proc/*' -not -path '/sys/*')"
refuse getent passwd tollgate
echo passed >/result
