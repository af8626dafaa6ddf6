# Sourced by the test scripts: where cargo builds, which models the tests use.
# shellcheck shell=bash disable=SC2034

target=$(cargo metadata --locked --format-version 1 --no-deps |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["target_directory"])')

export HOB_TEST_MODEL="$PWD/models/SmolLM2-135M-Instruct.Q4_1.gguf"
# Waiting threads give their core back soon, as the daemon arranges for itself: tests share the cores with each other.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT:-2000}

has_nextest() { cargo nextest --version >/dev/null 2>&1; }
