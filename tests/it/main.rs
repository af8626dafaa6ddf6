//! The integration tests, one binary: what the parts do together.
//!
//! `commands`: the binary's exit codes and its one clear line. `adapters`, `bad_input`, `reuse`, `tiers`, `pins`, `forget`, `fairness`,
//! `layout`, `tools`, `choices`, `why`, `home_assistant`, `recorded`: whole daemons over the simulated engine, asked over real
//! sockets. `killed`: K/V files when the process
//! dies. `real`: the same and the scheduler over a real model. `tidy`: the borders between the rooms. `conversations`: planned
//! prompts over the chat templates of many models. `anthropic`: an agent's sessions in that dialect. `house`, `cold` and `models` are
//! what they stand on.

mod adapters;
mod anthropic;
mod bad_input;
mod choices;
mod cold;
mod commands;
#[cfg(feature = "llama")]
mod conversations;
mod fairness;
#[cfg(feature = "llama")]
mod figures;
mod forget;
mod golden;
#[cfg(feature = "llama")]
mod home_assistant;
mod house;
mod house_says;
mod killed;
mod layout;
#[cfg(feature = "llama")]
mod models;
mod pins;
mod questions;
#[cfg(feature = "llama")]
mod real;
#[cfg(feature = "llama")]
mod recorded;
mod reuse;
mod tidy;
mod tiers;
mod tools;
mod why;
