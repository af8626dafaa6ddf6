//! Compiles the C++ neighbours of `src/engine/llama/`, which call parts of llama.cpp that the binding leaves out.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_LLAMA").is_none() {
        return;
    }
    let files = ["chat.cpp", "grammar.cpp"].map(|file| format!("src/engine/llama/{file}"));
    for file in files.iter().map(String::as_str).chain(["src/engine/llama/text.h"]) {
        println!("cargo:rerun-if-changed={file}");
    }
    let source = llama_cpp_source();
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").files(files).warnings(false);
    for folder in ["common", "include", "ggml/include", "src", "vendor"] {
        build.include(source.join(folder));
    }
    build.compile("hob_chat");
}

/// The sources that llama-cpp-sys-2 compiled, wherever cargo keeps them (registry or vendored): its build folder, which
/// its `links = "llama"` tells us, holds CMake's note of them. So headers and archive are always of one version.
fn llama_cpp_source() -> PathBuf {
    let built = std::env::var_os("DEP_LLAMA_ROOT").expect("llama-cpp-sys-2 tells where it built llama.cpp");
    let cache = Path::new(&built).join("build/CMakeCache.txt");
    let text = std::fs::read_to_string(&cache).unwrap_or_else(|error| panic!("{}: {error}", cache.display()));
    let source = text.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="));
    PathBuf::from(source.unwrap_or_else(|| panic!("{}: no CMAKE_HOME_DIRECTORY", cache.display())))
}
