//! Log probabilities as OpenAI writes them, and Ollama after it: what each generated token's chances were.
//!
//! A *candidate* is a token that could have come, with the natural logarithm of its probability. A token may be part of a
//! character: its bytes are told beside its text.

use serde_json::{Value, json};

use crate::request::{Candidate, TokenLogprob};

/// What stands for a probability of zero: JSON has no infinity, and OpenAI writes this.
const NEVER: f32 = -9999.0;

/// A list with an entry for each token.
pub(super) fn logprobs(tokens: &[TokenLogprob]) -> Value {
    let entries = tokens.iter().map(|TokenLogprob { token, top }| {
        let mut entry = candidate(token);
        entry["top_logprobs"] = top.iter().map(candidate).collect();
        entry
    });
    entries.collect()
}

fn candidate(Candidate { bytes, logprob }: &Candidate) -> Value {
    let logprob = if logprob.is_finite() { *logprob } else { NEVER };
    json!({ "token": String::from_utf8_lossy(bytes), "bytes": bytes, "logprob": logprob })
}
