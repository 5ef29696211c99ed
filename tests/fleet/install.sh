#!/usr/bin/env bash
# Installs the engines that tests/fleet starts, where they are missing: as root, Debian's packages. No server is left running.
set -euo pipefail

missing=()
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
[[ -e /usr/sbin/pgbouncer ]] || missing+=(pgbouncer)
[[ -e /usr/bin/redis-server ]] || missing+=(redis-server)
[[ -e /usr/sbin/haproxy ]] || missing+=(haproxy)
[[ -e /usr/bin/faketime ]] || missing+=(faketime)
[[ "${#missing[@]}" != 0 ]] || exit 0
if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "missing: ${missing[*]}; only root can install Debian's packages" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # which starts no service
apt-get update -qq
# Its package would make and start a database otherwise.
mkdir -p /etc/postgresql-common
[[ -e /etc/postgresql-common/createcluster.conf ]] ||
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
