//! The commands: what `hob` does and prints, apart from how its arguments are read (`main.rs`).

pub mod bench;
pub mod check;
pub mod format;
#[cfg(feature = "llama")]
mod model;
pub mod progress;
#[cfg(feature = "llama")]
pub mod serve;
pub mod stats;
