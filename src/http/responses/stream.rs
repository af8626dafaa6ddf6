//! A response as it grows: server-sent events with names and numbers.
//!
//! One output item is *open* at a time. It is announced, grows by deltas, is told once more whole, and closed before the next one
//! is opened; the last event has the whole response.

use serde_json::{Value, json};

use super::answer::{self, begun, function_call, message, reasoning, reasoning_part, text_part};
use super::request::Echo;
use crate::http::answer::Answer;
use crate::http::choice::{End, Piece};
use crate::http::deltas::Delta;
use crate::http::error::ApiError;
use crate::http::logprobs::logprobs;
use crate::http::stream::Script;
use crate::request::{CacheUse, TokenLogprob};

pub(super) struct Events {
    echo: Echo,
    n_events: usize,
    open: Option<Item>,
    /// Those that are closed.
    output: Vec<Value>,
    n_calls: usize,
}

enum Item {
    Reasoning(String),
    Message { text: String, logprobs: Vec<TokenLogprob> },
    Call { index: usize, id: String, name: String, arguments: String },
}

impl Script for Events {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    fn opening(&mut self, answer: &Answer, _: Option<&CacheUse>) -> String {
        let response = begun(answer, &self.echo);
        self.event("response.created", json!({ "response": response }))
            + &self.event("response.in_progress", json!({ "response": response }))
    }

    fn piece(&mut self, answer: &Answer, piece: Piece) -> String {
        let id = answer.id.as_str();
        let mut written = String::new();
        let mut tokens = piece.logprobs;
        for delta in piece.deltas {
            match delta {
                Delta::Reasoning(text) => {
                    if !matches!(self.open, Some(Item::Reasoning(_))) {
                        written += &self.close(id, "completed");
                        written += &self.begin(id, Item::Reasoning(String::new()));
                    }
                    written += &self.grow(id, &text, Vec::new());
                }
                Delta::Content(text) => {
                    written += &self.begin_message(id);
                    written += &self.grow(id, &text, std::mem::take(&mut tokens));
                }
                Delta::CallBegun { id: call_id, name, arguments, .. } => {
                    written += &self.close(id, "completed");
                    let index = self.n_calls;
                    self.n_calls += 1;
                    written += &self.begin(id, Item::Call { index, id: call_id, name, arguments: String::new() });
                    written += &self.grow(id, &arguments, Vec::new());
                }
                Delta::CallArguments { piece, .. } => written += &self.grow(id, &piece, Vec::new()),
            }
        }
        if let Some(end) = piece.end {
            written += &self.end(answer, &end);
        }
        written
    }

    fn keep_alive(&mut self, _: &Answer) -> String {
        ": keep-alive\n\n".to_owned()
    }

    fn broken(&mut self, answer: &Answer, error: &ApiError) -> String {
        let mut response = begun(answer, &self.echo);
        response["status"] = "failed".into();
        response["output"] = std::mem::take(&mut self.output).into();
        response["error"] = json!({ "code": "server_error", "message": error.message() });
        self.event("response.failed", json!({ "response": response }))
    }
}

impl Events {
    pub(super) fn new(echo: Echo) -> Events {
        Events { echo, n_events: 0, open: None, output: Vec::new(), n_calls: 0 }
    }

    fn event(&mut self, name: &str, mut data: Value) -> String {
        data["type"] = name.into();
        data["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        format!("event: {name}\ndata: {data}\n\n")
    }

    /// An event about the open item.
    fn item_event(&mut self, name: &str, item_id: &Value, mut data: Value) -> String {
        data["item_id"] = item_id.clone();
        data["output_index"] = self.output.len().into();
        self.event(name, data)
    }

    fn begin_message(&mut self, id: &str) -> String {
        match self.open {
            Some(Item::Message { .. }) => String::new(),
            _ => {
                let closed = self.close(id, "completed");
                closed + &self.begin(id, Item::Message { text: String::new(), logprobs: Vec::new() })
            }
        }
    }

    fn begin(&mut self, id: &str, item: Item) -> String {
        let part = item.empty_part();
        let mut shown = item.show(id, "in_progress");
        if part.is_some() {
            shown["content"] = json!([]);
        }
        self.open = Some(item);
        let item_id = shown["id"].clone();
        let mut written =
            self.event("response.output_item.added", json!({ "output_index": self.output.len(), "item": shown }));
        if let Some(part) = part {
            written +=
                &self.item_event("response.content_part.added", &item_id, json!({ "content_index": 0, "part": part }));
        }
        written
    }

    /// The open item says more.
    fn grow(&mut self, id: &str, piece: &str, tokens: Vec<TokenLogprob>) -> String {
        let Some(item) = &mut self.open else { return String::new() };
        let (name, data) = match item {
            Item::Reasoning(text) => {
                text.push_str(piece);
                ("response.reasoning_text.delta", json!({ "content_index": 0, "delta": piece }))
            }
            Item::Message { text, logprobs: all } => {
                text.push_str(piece);
                let data = json!({ "content_index": 0, "delta": piece, "logprobs": logprobs(&tokens) });
                all.extend(tokens);
                ("response.output_text.delta", data)
            }
            Item::Call { arguments, .. } => {
                arguments.push_str(piece);
                ("response.function_call_arguments.delta", json!({ "delta": piece }))
            }
        };
        let item_id = item.id(id);
        self.item_event(name, &item_id, data)
    }

    /// Tells the open item once more, whole.
    fn close(&mut self, id: &str, status: &str) -> String {
        let Some(item) = self.open.take() else { return String::new() };
        let (item_id, shown) = (item.id(id), item.show(id, status));
        let mut written = match &item {
            Item::Reasoning(text) => {
                self.item_event("response.reasoning_text.done", &item_id, json!({ "content_index": 0, "text": text }))
            }
            Item::Message { text, logprobs: tokens } => self.item_event(
                "response.output_text.done",
                &item_id,
                json!({ "content_index": 0, "text": text, "logprobs": logprobs(tokens) }),
            ),
            Item::Call { name, arguments, .. } => self.item_event(
                "response.function_call_arguments.done",
                &item_id,
                json!({ "name": name, "arguments": arguments }),
            ),
        };
        if item.empty_part().is_some() {
            let part = shown["content"][0].clone();
            written +=
                &self.item_event("response.content_part.done", &item_id, json!({ "content_index": 0, "part": part }));
        }
        let index = self.output.len();
        written += &self.event("response.output_item.done", json!({ "output_index": index, "item": shown }));
        self.output.push(shown);
        written
    }

    fn end(&mut self, answer: &Answer, end: &End) -> String {
        let mut written = String::new();
        // An answer of nothing is a message without text.
        if self.n_calls == 0 && !matches!(self.open, Some(Item::Message { .. })) {
            written += &self.begin_message(&answer.id);
        }
        let status = answer::status(end);
        written += &self.close(&answer.id, status);
        let mut response = begun(answer, &self.echo);
        answer::end(&mut response, std::mem::take(&mut self.output), end, &answer.plan);
        written + &self.event(&format!("response.{status}"), json!({ "response": response }))
    }
}

impl Item {
    /// As it is called in the events about it.
    fn id(&self, id: &str) -> Value {
        self.show(id, "in_progress")["id"].take()
    }

    fn show(&self, id: &str, status: &str) -> Value {
        match self {
            Item::Reasoning(text) => reasoning(id, text, status),
            Item::Message { text, logprobs } => message(id, text, logprobs, status),
            Item::Call { index, id: call_id, name, arguments } => {
                function_call(id, *index, (call_id, name, arguments), status)
            }
        }
    }

    /// What its content begins with, where it has any.
    fn empty_part(&self) -> Option<Value> {
        match self {
            Item::Reasoning(_) => Some(reasoning_part("")),
            Item::Message { .. } => Some(text_part("", &[])),
            Item::Call { .. } => None,
        }
    }
}
