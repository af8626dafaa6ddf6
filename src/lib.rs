//! hob: a home-server assistant daemon that computes each repeated prompt token once.

pub mod commands;
pub mod config;
pub mod daemon;
pub mod engine;
pub mod http;
pub mod kv;
pub mod prompt;
pub mod request;
pub mod scheduler;
pub mod telemetry;
