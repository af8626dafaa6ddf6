#!/usr/bin/env bash
# The tests that `make test` leaves out: `models` (two more models) or `soak` (long). Their names begin with that word.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/test-env.sh

kind=${1:?models or soak}
case "$kind" in
models)
    export HOB_TEST_MODEL_GEMMA="$PWD/models/gemma-3-270m-q4_k_m.gguf"
    export HOB_TEST_MODEL_QWEN="$PWD/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
    ;;
soak) export HOB_TEST_MODEL_QWEN="$PWD/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf" ;;
*)
    echo "test-long: $kind: must be models or soak" >&2
    exit 2
    ;;
esac

started=$SECONDS
if has_nextest; then
    cargo nextest run --locked --cargo-profile ci --profile "$kind"
    python3 scripts/slowest.py "target/nextest/$kind/junit.xml"
else
    cargo test --locked --profile ci --test it -- "::${kind}_" --test-threads 1 --nocapture
fi
echo "test-$kind: all passed in $((SECONDS - started)) s"
