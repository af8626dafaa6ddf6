//! Anthropic's streamed answer: server-sent events with names, block by block.
//!
//! One block is open at a time, and their indexes rise. What a message costs is said at its start, if the request is admitted by
//! then, and in any case at its end.

use serde_json::{Value, json};

use super::answer::{SIGNATURE, head, prompt_usage, stop_reason, usage};
use super::request::Terms;
use crate::http::answer::Answer;
use crate::http::choice::Piece;
use crate::http::deltas::Delta;
use crate::http::error::ApiError;
use crate::http::stream::Script;
use crate::request::{CacheUse, Dialect};

pub(super) struct Events {
    terms: Terms,
    open: Option<Open>,
    /// Blocks so far, the open one included.
    n_blocks: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Open {
    Thinking,
    Text,
    Call,
}

impl Events {
    pub(super) fn new(terms: Terms) -> Events {
        Events { terms, open: None, n_blocks: 0 }
    }

    fn write(&mut self, delta: Delta, text: &mut String) {
        match delta {
            // Behind a call it would have to stand between the pieces of its arguments.
            Delta::Reasoning(_) if self.open == Some(Open::Call) => {}
            Delta::Reasoning(piece) => {
                self.begin(Open::Thinking, text, || json!({ "type": "thinking", "thinking": "", "signature": "" }));
                if self.terms.shows_thinking {
                    self.add(text, &json!({ "type": "thinking_delta", "thinking": piece }));
                }
            }
            Delta::Content(piece) => {
                self.begin(Open::Text, text, || json!({ "type": "text", "text": "" }));
                self.add(text, &json!({ "type": "text_delta", "text": piece }));
            }
            Delta::CallBegun { id, name, arguments, .. } => {
                self.end(text);
                self.begin(Open::Call, text, || json!({ "type": "tool_use", "id": id, "name": name, "input": {} }));
                self.add(text, &json!({ "type": "input_json_delta", "partial_json": arguments }));
            }
            Delta::CallArguments { piece, .. } => {
                self.add(text, &json!({ "type": "input_json_delta", "partial_json": piece }));
            }
        }
    }

    /// Opens a block of this kind, if none is open.
    fn begin(&mut self, kind: Open, text: &mut String, block: impl FnOnce() -> Value) {
        if self.open == Some(kind) {
            return;
        }
        self.end(text);
        self.open = Some(kind);
        self.n_blocks += 1;
        let index = self.n_blocks - 1;
        *text += &event(&json!({ "type": "content_block_start", "index": index, "content_block": block() }));
    }

    fn add(&self, text: &mut String, delta: &Value) {
        let index = self.n_blocks.checked_sub(1).expect("a block begins before it grows");
        *text += &event(&json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    }

    /// Closes the open block.
    fn end(&mut self, text: &mut String) {
        let Some(kind) = self.open.take() else { return };
        if kind == Open::Thinking {
            self.add(text, &json!({ "type": "signature_delta", "signature": SIGNATURE }));
        }
        *text += &event(&json!({ "type": "content_block_stop", "index": self.n_blocks - 1 }));
    }
}

impl Script for Events {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn opening(&mut self, answer: &Answer, cache: Option<&CacheUse>) -> String {
        let mut message = head(answer);
        message["usage"] = match cache {
            Some(cache) => prompt_usage(cache),
            None => json!({ "input_tokens": 0, "output_tokens": 0 }),
        };
        event(&json!({ "type": "message_start", "message": message }))
    }

    fn piece(&mut self, answer: &Answer, piece: Piece) -> String {
        let mut text = String::new();
        for delta in piece.deltas {
            self.write(delta, &mut text);
        }
        if let Some(end) = &piece.end {
            self.end(&mut text);
            let (reason, sequence) = stop_reason(end, self.terms);
            let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
            let usage = usage(end, &answer.plan);
            text += &event(&json!({ "type": "message_delta", "delta": delta, "usage": usage }));
            text += &event(&json!({ "type": "message_stop" }));
        }
        text
    }

    fn keep_alive(&mut self, _: &Answer) -> String {
        event(&json!({ "type": "ping" }))
    }

    fn broken(&mut self, answer: &Answer, error: &ApiError) -> String {
        event(&error.to_json(Dialect::Anthropic, &answer.id))
    }
}

/// An event is named by the type of its data.
fn event(data: &Value) -> String {
    let name = data["type"].as_str().expect("each event has a type");
    format!("event: {name}\ndata: {data}\n\n")
}
