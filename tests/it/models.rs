//! Defines where tests find their models. A *model* here is a GGUF file named by an environment variable, or by its own
//! name in `models/` of the repository.

use std::path::{Path, PathBuf};

/// SmolLM2-135M-Instruct: full attention, ChatML, no place for tools. Must be there.
pub(crate) fn smollm2() -> PathBuf {
    let path = find("HOB_TEST_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.is_file(), "{} is missing: run `make model`, or set HOB_TEST_MODEL", path.display());
    path
}

/// Gemma 3 270M: sliding window, no chat template.
pub(crate) fn gemma() -> Option<PathBuf> {
    optional("HOB_TEST_MODEL_GEMMA", "gemma-3-270m-q4_k_m.gguf")
}

/// Qwen2.5-Coder-0.5B-Instruct: full attention, a template with tools.
pub(crate) fn qwen() -> Option<PathBuf> {
    optional("HOB_TEST_MODEL_QWEN", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
}

/// A path that the environment names must exist; the default may be absent.
fn optional(variable: &str, name: &str) -> Option<PathBuf> {
    let path = find(variable, name);
    if path.is_file() {
        return Some(path);
    }
    assert!(std::env::var_os(variable).is_none(), "{variable}: {} is missing", path.display());
    eprintln!("skipped: {} is missing, `make test-models` fetches it", path.display());
    None
}

fn find(variable: &str, name: &str) -> PathBuf {
    std::env::var_os(variable)
        .map(PathBuf::from)
        .unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("models").join(name))
}
