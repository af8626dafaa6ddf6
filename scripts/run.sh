#!/usr/bin/env bash
# Builds hob and serves the demo household with the demo model, or with $MODEL.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${MODEL:-}" ]; then
    scripts/model.py demo
fi
exec cargo run --locked --profile ci ${FEATURES:+--features "$FEATURES"} -- \
    serve --config assets/demo/config.toml ${MODEL:+--model "$MODEL"}
