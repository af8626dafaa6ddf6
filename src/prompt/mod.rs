//! The planner: from a request's messages to the tokens the engine computes.
//!
//! plan (order of sections) → render (template) → tokens and cuts. One OS thread owns what it remembers: prepared
//! templates, tokens of stretches, the profiles' heads. It computes nothing on the model and knows no HTTP.

use std::time::Duration;

use crate::request::TokenPrompt;

/// An assistant of the house, its files read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    pub name: String,
    pub system: String,
    /// JSON text of each tool definition.
    pub tools: Vec<String>,
    /// In the configured order.
    pub documents: Vec<Document>,
    pub max_tokens: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The file's name without its ending.
    pub title: String,
    pub text: String,
}

/// How much a section changes; sections stand in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Volatility {
    Fixed,
    Document,
    Session,
    Turn,
    Live,
}

/// One piece of the prompt as planned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// "policy", "tools", "document handbook", "client system", "history", "question".
    pub name: String,
    pub class: Volatility,
    /// Length of its text in bytes.
    pub n_bytes: usize,
    /// The token offset at which it ends, where that is a stable cut.
    pub cut: Option<usize>,
}

/// A request's prompt, ready for the scheduler.
#[derive(Clone, Debug)]
pub struct Planned {
    pub prompt: TokenPrompt,
    pub sections: Vec<Section>,
    /// The profile that answered, if one was named.
    pub profile: Option<String>,
    /// The request's own, else the profile's.
    pub max_tokens: Option<usize>,
    pub timings: PlanTimings,
}

/// CPU of the planner's parts for one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanTimings {
    pub plan: Duration,
    pub render: Duration,
    pub tokenise: Duration,
}

/// What is wrong with a request's prompt; all are the client's to mend (4xx).
#[derive(Debug, thiserror::Error)]
pub enum PromptError {
    #[error("model `{name}` is not here; there are: {known}")]
    UnknownModel { name: String, known: String },
    #[error("messages[{index}] holds the character U+{code:X}, which is reserved")]
    Reserved { index: usize, code: u32 },
    #[error("{place} holds the character U+{code:X}, which is reserved")]
    ReservedElsewhere { place: String, code: u32 },
    #[error("the model's chat template refuses these messages: {reason}")]
    Template { reason: String },
}

/// Why a request was not planned.
#[derive(Debug)]
pub enum PlanFailure {
    Prompt(PromptError),
    /// The planner's inbox is full.
    Busy,
    /// The planner has ended.
    Stopped,
}
