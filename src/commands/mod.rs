//! The commands: what `hob` prints, apart from how its arguments are read (`main.rs`).

pub mod check;
pub mod format;
pub mod stats;
