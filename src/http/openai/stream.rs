//! OpenAI's streamed answer: server-sent events.
//!
//! A *chunk* is one `data:` line holding a `chat.completion.chunk`; `[DONE]` ends a complete stream, an error object ends
//! a broken one.

use serde_json::{Value, json};

use super::answer::{completion_id, finish_reason, logprobs_json, usage};
use crate::http::answer::Answer;
use crate::http::choice::{End, Piece};
use crate::http::deltas::Delta;
use crate::http::error::ApiError;
use crate::http::stream::{Script, event};

pub(super) struct Chunks {
    include_usage: bool,
    /// Of each choice whether its first chunk was sent: that one brings the role.
    roles: Vec<bool>,
    /// Of each choice how it ended.
    ends: Vec<Option<End>>,
}

impl Script for Chunks {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn piece(&mut self, answer: &Answer, piece: Piece) -> String {
        let Piece { choice, deltas, logprobs: tokens, end } = piece;
        let mut text = String::new();
        if !std::mem::replace(&mut self.roles[choice], true) {
            text += &event(&self.chunk(answer, choice, json!({ "role": "assistant", "content": "" })));
        }
        let mut chunks: Vec<Value> =
            deltas.into_iter().map(|delta| self.chunk(answer, choice, fields(delta))).collect();
        if let Some(end) = &end {
            let mut last = self.chunk(answer, choice, json!({}));
            last["choices"][0]["finish_reason"] = finish_reason(end).into();
            chunks.push(last);
        }
        if answer.has_logprobs && !tokens.is_empty() {
            chunks[0]["choices"][0]["logprobs"] = logprobs_json(&tokens);
        }
        text.extend(chunks.iter().map(event));
        if let Some(end) = end {
            self.ends[choice] = Some(end);
            text += &self.ended(answer);
        }
        text
    }

    fn keep_alive(&mut self, _: &Answer) -> String {
        ": keep-alive\n\n".to_owned()
    }

    fn broken(&mut self, _: &Answer, error: &ApiError) -> String {
        event(&error.to_openai())
    }
}

impl Chunks {
    pub(super) fn new(n_choices: usize, include_usage: bool) -> Chunks {
        Chunks { include_usage, roles: vec![false; n_choices], ends: (0..n_choices).map(|_| None).collect() }
    }

    /// What ends the stream, if all choices have ended.
    fn ended(&self, answer: &Answer) -> String {
        let Some(ends) = self.ends.iter().map(Option::as_ref).collect::<Option<Vec<&End>>>() else {
            return String::new();
        };
        let mut text = String::new();
        if self.include_usage {
            let mut chunk = head(answer);
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(&ends, &answer.plan);
            text += &event(&chunk);
        }
        text + "data: [DONE]\n\n"
    }

    fn chunk(&self, answer: &Answer, choice: usize, delta: Value) -> Value {
        let mut chunk = head(answer);
        chunk["choices"] = json!([{ "index": choice, "delta": delta, "logprobs": null, "finish_reason": null }]);
        if self.include_usage {
            // OpenAI's streams carry the key in each chunk once the client asked for it.
            chunk["usage"] = Value::Null;
        }
        chunk
    }
}

fn head(answer: &Answer) -> Value {
    json!({
        "id": completion_id(&answer.id),
        "object": "chat.completion.chunk",
        "created": answer.created,
        "model": answer.model,
    })
}

/// A chunk has one call at most: Home Assistant reads the first of each.
fn fields(delta: Delta) -> Value {
    match delta {
        Delta::Reasoning(piece) => json!({ "reasoning_content": piece }),
        Delta::Content(piece) => json!({ "content": piece }),
        Delta::CallBegun { index, id, name, arguments } => {
            let function = json!({ "name": name, "arguments": arguments });
            json!({ "tool_calls": [{ "index": index, "id": id, "type": "function", "function": function }] })
        }
        Delta::CallArguments { index, piece } => {
            json!({ "tool_calls": [{ "index": index, "function": { "arguments": piece } }] })
        }
    }
}
