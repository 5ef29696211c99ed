#!/usr/bin/env bash
# Installs the engines that tests/fleet starts, where they are missing: as root, Debian's packages. No server is left running.
set -euo pipefail

if ls -d /usr/lib/postgresql/*/bin/postgres /usr/sbin/pgbouncer >/dev/null 2>&1; then
    exit 0
fi
if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "PostgreSQL or PgBouncer is missing, and only root can install Debian's packages" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 # which starts no service
apt-get update -qq
# Its package would make and start a database otherwise.
mkdir -p /etc/postgresql-common
[[ -e /etc/postgresql-common/createcluster.conf ]] ||
    echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
apt-get install -qq -y --no-install-recommends postgresql pgbouncer >/dev/null
