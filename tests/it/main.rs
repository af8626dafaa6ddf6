//! The integration tests, one binary: what several parts do together.

#[cfg(feature = "llama")]
mod models;
#[cfg(feature = "llama")]
mod real;
