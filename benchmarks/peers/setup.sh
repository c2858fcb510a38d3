#!/bin/sh
# Give each named rival a virtual environment of its own: benchmarks/peers/NAME/.venv, which git ignores.
#
#     benchmarks/peers/setup.sh [NAME...]      (no name: all of them; PYTHON=... for another interpreter than python3.11)
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- torch pfl fedjax flower fluke fedlab blazefl
for name; do
    if [ ! -f "$name/requirements.txt" ]; then
        echo "setup.sh: $name is no rival; there are: $(ls -d */ | tr -d /| tr '\n' ' ')" >&2
        exit 2
    fi
    echo "== $name"
    "${PYTHON:-python3.11}" -m venv --clear "$name/.venv"
    # BlazeFL asks for a newer Python than it uses; its requirements name every package that would ask too.
    flag=$([ "$name" = blazefl ] && echo --ignore-requires-python || true)
    "$name/.venv/bin/pip" install --quiet $flag --requirement "$name/requirements.txt"
done
