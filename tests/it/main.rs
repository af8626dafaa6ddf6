//! What hob does as a whole.
//!
//! `commands`: the binary's exit codes and its one clear line; `models`: where tests find their models.

mod commands;
#[cfg(feature = "llama")]
mod models;
