#!/usr/bin/env bash
# Installs what building and testing hob lacks on Debian and Ubuntu; elsewhere says what is needed and goes on.
#
# A need is a probe, the packages that answer it, and why it is needed. Nothing is installed when every probe succeeds.
# With --dry-run it says what it would install and installs nothing.
set -euo pipefail

dry_run=false
case "${1:-}" in
--dry-run) dry_run=true ;;
"") ;;
*)
    echo "needs: unknown argument $1; there is --dry-run" >&2
    exit 2
    ;;
esac

say() { echo "needs: $*"; }

has_cmake() { command -v cmake >/dev/null; }
has_make() { command -v make >/dev/null; }
has_compiler() { command -v cc >/dev/null && command -v c++ >/dev/null; }
has_python() { python3 -m pip --version >/dev/null 2>&1 && python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_curl() { command -v curl >/dev/null; }

# bindgen loads libclang.so from where LLVM's packages put it, and asks `clang` for its header folder.
has_clang() {
    command -v clang >/dev/null || return 1
    [ "$(uname -s)" = Linux ] || return 0
    local folder
    for folder in ${LIBCLANG_PATH:+"$LIBCLANG_PATH"} /usr/lib/llvm*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib; do
        compgen -G "$folder/libclang.so*" >/dev/null && return 0
        compgen -G "$folder/libclang-*.so*" >/dev/null && return 0
    done
    return 1
}

# name | Debian packages | why
# shellcheck disable=SC2016  # the backquotes are for the reader
needs='compiler|g++|a C and C++ compiler, for llama.cpp and SQLite
cmake|cmake|configures the build of llama.cpp
make|make|runs the build of llama.cpp, and these commands
clang|clang libclang-dev|libclang reads the headers of llama.cpp for the Rust bindings
python|python3 python3-pip python3-venv|fetches the models and runs the tests of the OpenAI client
curl|curl|sends the question that `make run` prints'

# Prints the lines of `needs` whose probe fails.
missing() {
    local line
    while IFS= read -r line; do
        "has_${line%%|*}" || printf '%s\n' "$line"
    done <<<"$needs"
}

is_debian() {
    command -v apt-get >/dev/null && [ -r /etc/os-release ] || return 1
    # shellcheck source=/dev/null
    (. /etc/os-release && case " ${ID:-} ${ID_LIKE:-} " in *" debian "* | *" ubuntu "*) exit 0 ;; *) exit 1 ;; esac)
}

apt() {
    local as_root=()
    [ "$(id -u)" -eq 0 ] || as_root=(sudo)
    ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get "$@" </dev/null
}

install_debian() {
    local packages=() line names
    while IFS= read -r line; do
        IFS='|' read -r _ names _ <<<"$line"
        read -ra names <<<"$names"
        packages+=("${names[@]}")
    done <<<"$lacking"
    if $dry_run; then
        say "would run: apt-get install --no-install-recommends ${packages[*]}"
        exit 0
    fi
    if [ "$(id -u)" -ne 0 ] && ! command -v sudo >/dev/null; then
        say "this user is not root and there is no sudo; as root run: apt-get install ${packages[*]}" >&2
        exit 1
    fi
    say "installing with apt-get: ${packages[*]}"
    # Package lists are fetched only when those at hand cannot name, or no longer lead to, the packages.
    if ! apt-get install --dry-run "${packages[@]}" >/dev/null 2>&1 ||
        ! apt install -y -q --no-install-recommends "${packages[@]}"; then
        say "fetching the package lists first"
        apt update -q
        apt install -y -q --no-install-recommends "${packages[@]}"
    fi
    lacking=$(missing)
    if [ -n "$lacking" ]; then
        say "installed, but still not found: $(cut -d'|' -f1 <<<"$lacking" | paste -sd' ' -); is another program of that name first in PATH?" >&2
        exit 1
    fi
}

lacking=$(missing)
if [ -z "$lacking" ]; then
    say "everything is here"
else
    while IFS='|' read -r name _ why; do say "$name is missing: $why"; done <<<"$lacking"
    if is_debian; then
        install_debian
    elif [ "$(uname -s)" = Darwin ]; then
        say "on macOS: \`xcode-select --install\` gives compiler, make, libclang and python3; \`brew install cmake\` gives cmake; going on"
    else
        say "this system's packages are not known here: install the above with its package manager; going on"
    fi
fi

if ! command -v cargo >/dev/null; then
    say "Rust is missing: get it from https://rustup.rs, open a new shell and try again" >&2
    exit 1
fi
