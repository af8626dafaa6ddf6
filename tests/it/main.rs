//! The integration tests, one binary: whole daemons, asked over real sockets.

mod bad_input;
mod cold;
#[cfg(feature = "llama")]
mod home_assistant;
mod house;
#[cfg(feature = "llama")]
mod models;
#[cfg(feature = "llama")]
mod real;
mod reuse;
mod tidy;
