//! Defines `check`: whether this CPU can run the llama.cpp that was built in.
//!
//! A *feature* is an instruction set. llama.cpp is compiled for a fixed list of them and dies with SIGILL and no message
//! where one is missing, so the list is checked first.

/// Says which instruction sets the CPU lacks; to be asked before anything else of llama.cpp.
pub fn check() -> Result<(), String> {
    let missing: Vec<&str> =
        features().into_iter().filter_map(|(name, is_there)| (!is_there).then_some(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this CPU lacks {}, which the built-in llama.cpp needs; use a newer CPU or a build made for this one",
        missing.join(", ")
    ))
}

/// What ggml's CMakeLists turn on for a build that is not native.
#[cfg(target_arch = "x86_64")]
fn features() -> Vec<(&'static str, bool)> {
    vec![
        ("SSE4.2", std::arch::is_x86_feature_detected!("sse4.2")),
        ("AVX", std::arch::is_x86_feature_detected!("avx")),
        ("AVX2", std::arch::is_x86_feature_detected!("avx2")),
        ("FMA", std::arch::is_x86_feature_detected!("fma")),
        ("F16C", std::arch::is_x86_feature_detected!("f16c")),
        ("BMI2", std::arch::is_x86_feature_detected!("bmi2")),
    ]
}

/// On ARM the build asks for no more than the base instruction set.
#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<(&'static str, bool)> {
    Vec::new()
}
