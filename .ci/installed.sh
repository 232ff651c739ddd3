#!/bin/sh
# Build the source distribution and from it the wheel, into dist/; then install the wheel with each pinned list that is
# named (base, serve ...) into an environment of its own, say what that weighs, and try it.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$python" -m venv "$scratch/build"
"$scratch/build/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints/base.txt
rm -rf dist
"$scratch/build/bin/python" -m hatchling build -t sdist -d dist
mkdir "$scratch/source"
tar -xzf dist/conv_advisor-*.tar.gz -C "$scratch/source" --strip-components 1
(cd "$scratch/source" && "$scratch/build/bin/python" -m hatchling build -t wheel -d "$scratch/wheel")
cp "$scratch"/wheel/*.whl dist/

for list in "$@"; do
    "$python" -m venv "$scratch/$list"
    install="$scratch/$list/bin/pip install --quiet --disable-pip-version-check --no-deps"
    $install --require-hashes -r "constraints/$list.txt"
    $install dist/*.whl
    "$scratch/$list/bin/pip" uninstall --quiet --yes pip
    echo "$list: $(du -sm "$scratch/$list"/lib/python3*/site-packages | cut -f 1) MB of site-packages"
    "$python" .ci/smoke.py "$scratch/$list/bin"
done
