#!/usr/bin/env bash
# Measures the demo household with the demo model, or with $MODEL; then the parts that need no model, without llama.cpp.
# Arguments go to `hob bench`: scripts/bench.sh --threads
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${MODEL:-}" ]; then
    scripts/model.py demo
fi
cargo run --locked --profile ci ${FEATURES:+--features "$FEATURES"} -- \
    bench --config assets/demo/config.toml ${MODEL:+--model "$MODEL"} "$@"
# Cargo's own profile for benches would compile everything again.
cargo bench --locked --profile ci --no-default-features --bench tokens --bench tree
