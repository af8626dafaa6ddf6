#!/usr/bin/env bash
# Runs the official clients' tests against a daemon that it starts with the demo household: run.sh HOB MODEL [pytest options]
#
# HOB is the built binary, MODEL a GGUF file. The daemon listens on a free port and keeps its state in a temporary folder.
set -euo pipefail

hob=$(realpath "${1:?run.sh HOB MODEL [pytest options]}")
model=$(realpath "${2:?run.sh HOB MODEL [pytest options]}")
shift 2
here=$(cd "$(dirname "$0")" && pwd)
demo=$(cd "$here/../../assets/demo" && pwd)
venv=$here/.venv

# The virtual environment is made anew when the requirements changed.
if ! cmp -s "$here/requirements.txt" "$venv/requirements.txt"; then
    echo "python: making a virtual environment with the pinned clients"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/requirements.txt"
fi
python=$venv/bin/python

state=$(mktemp -d)
daemon=
clean_up() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
    rm -rf "$state"
}
trap clean_up EXIT

fail() {
    echo "python: $*; the daemon's last lines:" >&2
    tail -n 30 "$state/log" >&2
    exit 1
}

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$state/config.toml" <<CONFIG
[server]
listen = ["127.0.0.1:$port"]

[model]
path = "$model"
name = "tiny"
context = 8192
parallel = 4

[cache]
dir = "$state/kv"

[telemetry]
path = "$state/hob.sqlite"

[[profile]]
name = "house"
system = "$demo/house.md"
tools = "$demo/tools.json"
documents = ["$demo/documents/*.md"]
max_tokens = 32
CONFIG

"$hob" serve --config "$state/config.toml" >"$state/log" 2>&1 &
daemon=$!
export HOB_URL=http://127.0.0.1:$port
# The daemon is near: a proxy from the environment would only be in the way.
export NO_PROXY=127.0.0.1 no_proxy=127.0.0.1
"$python" "$here/wait_ready.py" "$HOB_URL" "$daemon" || fail "the daemon did not become ready"

"$python" -m pytest -p no:cacheprovider "$here" "$@" || fail "the clients' tests failed"

# SIGTERM drains within ten seconds, and the exit code says that all went well.
kill -TERM "$daemon"
for _ in $(seq 100); do
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.2
done
kill -0 "$daemon" 2>/dev/null && fail "the daemon still runs 20 s after SIGTERM"
status=0
wait "$daemon" || status=$?
daemon=
[ "$status" -eq 0 ] || fail "the daemon ended with $status on SIGTERM"
