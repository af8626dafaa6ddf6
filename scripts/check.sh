#!/usr/bin/env bash
# Format and lints with warnings as errors, without llama.cpp first because that fails sooner; cargo-deny where installed.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { echo "== $*"; "$@"; }

for component in fmt clippy; do
    cargo "$component" --version >/dev/null 2>&1 || {
        echo "check: cargo $component is missing: rustup component add rustfmt clippy" >&2
        exit 1
    }
done
step cargo fmt --check
step cargo clippy --locked --profile ci --all-targets --no-default-features -- -D warnings
step cargo clippy --locked --profile ci --all-targets -- -D warnings
if cargo deny --version >/dev/null 2>&1; then
    # Advisories would need a database that is fetched from elsewhere.
    step cargo deny --locked check bans licenses sources
else
    echo "check: cargo-deny is not installed; licences, bans and sources were not checked"
fi
