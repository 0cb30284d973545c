#!/bin/sh
# What the browser tests need beside Python: installed as root on Debian or Ubuntu, else those tests are skipped.
set -eu
command -v chromium >/dev/null && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "==> Installing Chromium for the browser tests"
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium >/dev/null
else
    echo "==> No Chromium here and no right to install it: the browser tests will be skipped"
fi
