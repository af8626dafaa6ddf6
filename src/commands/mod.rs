//! The commands: what `hob` does and prints, apart from how its arguments are read (`main.rs`).

pub mod ask;
pub mod bench;
pub mod chat;
pub mod check;
pub mod forget;
pub mod format;
pub mod key;
pub mod lint;
#[cfg(feature = "llama")]
mod model;
pub mod pins;
pub mod plan;
pub mod progress;
#[cfg(feature = "llama")]
pub mod serve;
pub mod stats;
pub mod why;

/// The demo model's name, which is its file's name without the ending. It is tiny, and that is said where it answers.
const DEMO_MODEL: &str = "SmolLM2-135M-Instruct.Q4_1";
