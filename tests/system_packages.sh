#!/bin/sh
# What the browser, Slurm and campaign tests need beside Python: installed as root on Debian or Ubuntu, else those tests are skipped.
set -eu
packages=
command -v gcc >/dev/null || packages="gcc libc6-dev"
command -v chromium >/dev/null || packages="$packages chromium"
for program in sbatch slurmctld slurmd munged; do
    command -v "$program" >/dev/null || { packages="$packages slurm-wlm munge"; break; }
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    [ -z "$packages" ] || echo "==> No right to install $packages here: the tests that need them will be skipped"
    exit 0
fi
if [ -n "$packages" ]; then
    echo "==> Installing for the browser, Slurm and campaign tests: $packages"
    if [ ! -e /usr/sbin/policy-rc.d ]; then # the tests start daemons of their own, so the packages' stay down
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod 755 /usr/sbin/policy-rc.d
    fi
    apt-get update -qq
    # shellcheck disable=SC2086 - several words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages >/dev/null
fi
getent hosts n1 >/dev/null && getent hosts n2 >/dev/null || echo "127.0.0.1 n1 n2" >>/etc/hosts
