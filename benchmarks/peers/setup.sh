#!/bin/sh
# Give each named rival a virtual environment of its own: benchmarks/peers/NAME/.venv, which git ignores. A rival that is
# no package has its code in NAME/.source; NAME/source names the repository, the commit, the folder that Python imports
# from, and the folders that are needed.
#
#     benchmarks/peers/setup.sh [NAME...]      (no name: all of them; PYTHON=... for another interpreter than python3.11)
set -eu
cd "$(dirname "$0")"
[ $# -gt 0 ] || set -- torch pfl fedjax flower fluke fedlab blazefl flbench pfllib
for name; do
    if [ ! -f "$name/requirements.txt" ]; then
        echo "setup.sh: $name is no rival; there are: $(ls -d */ | tr -d /| tr '\n' ' ')" >&2
        exit 2
    fi
    echo "== $name"
    if [ -f "$name/source" ]; then
        read -r repository commit imported folders <"$name/source"
        rm -rf "$name/.source"
        git clone --quiet --no-checkout --filter=blob:none "$repository" "$name/.source"
        # shellcheck disable=SC2086
        git -C "$name/.source" sparse-checkout set $folders
        git -C "$name/.source" -c advice.detachedHead=false checkout --quiet "$commit"
    fi
    "${PYTHON:-python3.11}" -m venv --clear "$name/.venv"
    # BlazeFL asks for a newer Python than it uses; its requirements name every package that would ask too.
    flag=$([ "$name" = blazefl ] && echo --ignore-requires-python || true)
    "$name/.venv/bin/pip" install --quiet $flag --requirement "$name/requirements.txt"
    if [ -f "$name/source" ]; then
        echo "$PWD/$name/.source/$imported" >"$("$name/.venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/source.pth"
    fi
done
