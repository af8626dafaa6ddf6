//! Compiles the C++ neighbour of `src/engine/llama/`, which calls a part of llama.cpp that the binding leaves out.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var_os("CARGO_FEATURE_LLAMA").is_none() {
        return;
    }
    let file = "src/engine/llama/chat.cpp";
    println!("cargo:rerun-if-changed={file}");
    let source = llama_cpp_source();
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").file(file).warnings(false);
    for folder in ["common", "include", "ggml/include", "vendor"] {
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
