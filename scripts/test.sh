#!/usr/bin/env bash
# Everything that the demo model can show: lints, tests without and with llama.cpp, the OpenAI client; then the slowest ten.
#
# cargo-nextest is used where it is installed; with plain `cargo test` the real model's tests run one after the other and
# no times are shown. Which tests are left out here and why is in .config/nextest.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/test-env.sh

step() { echo "== $*"; "$@"; }

started=$SECONDS
scripts/check.sh
for features in --no-default-features --features=llama; do
    build=(--locked "$features")
    if has_nextest; then
        step cargo nextest run --cargo-profile ci "${build[@]}"
        mv target/nextest/default/junit.xml "target/nextest/${features#--}.xml"
    else
        step cargo test --profile ci "${build[@]}" --lib --bins
        step cargo test --profile ci "${build[@]}" --test it -- --skip ::soak_ --skip ::models_ --skip real::
        if [ "$features" = --features=llama ]; then
            step cargo test --profile ci "${build[@]}" --test it -- real:: --skip ::soak_ --skip ::models_ --test-threads 1
        fi
    fi
    step cargo test --profile ci "${build[@]}" --doc
done

# The binary was built with llama.cpp last.
step tests/python/run.sh "$target/ci/hob" "$HOB_TEST_MODEL"

if has_nextest; then
    python3 scripts/slowest.py target/nextest/*.xml
fi
echo "test: all passed in $((SECONDS - started)) s"
