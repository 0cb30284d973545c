#!/bin/sh
# Installs this checkout into .venv, editable: `sh tests/install.sh .` or `sh tests/install.sh '.[test]'`.
# By uv, which takes seconds where pip takes minutes; by pip where uv can't be had or fails.
set -eu
bin=.venv/bin
settings=$("$bin/pip" config list)

# Hands one of pip's settings over to uv, which reads none of them. A variable precedes files, and uv's own precedes both.
hand_over() { # SETTING VARIABLE [SEPARATOR]
    value=$(printf '%s\n' "$settings" | sed -nE "s/^(:env:|global)\.$1='(.*)'\$/\2/p" | head -n 1)
    value=$(printf '%s\n' "$value" | sed -E "s/(\\\\n| )+/${3:- }/g")
    [ -z "$value" ] || eval "export $2=\"\${$2:-\$value}\""
}

hand_over index-url UV_DEFAULT_INDEX
hand_over extra-index-url UV_INDEX
hand_over find-links UV_FIND_LINKS ,
hand_over no-index UV_NO_INDEX
hand_over cert SSL_CERT_FILE
hand_over default-timeout UV_HTTP_TIMEOUT
export UV_INDEX_STRATEGY="${UV_INDEX_STRATEGY:-unsafe-best-match}" # the newest of all indexes, as pip chooses

set -- --constraint constraints.txt --editable "$1"
if "$bin/pip" install --quiet --disable-pip-version-check --constraint constraints.txt uv; then
    "$bin/uv" pip install --quiet --python "$bin/python" "$@" && exit
fi
echo "==> uv could not install it, so pip does, in a few minutes"
exec "$bin/pip" install --disable-pip-version-check --no-compile "$@"
