//! OpenAI's streamed answer: server-sent events.
//!
//! A *chunk* is one `data:` line holding a `chat.completion.chunk`; `[DONE]` ends a complete stream, an error object ends
//! a broken one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};
use tracing::warn;

use super::answer::{CACHE_HEADER, completion_id, finish_reason, usage};
use super::logprobs::logprobs;
use crate::http::answer::{Answer, cache_header};
use crate::http::choice::Piece;
use crate::http::deltas::Delta;
use crate::http::error::ApiError;
use crate::request::Done;

/// Headers go out after this even if the request still waits: clients give up on a server that says nothing.
const HEADERS_WITHIN: Duration = Duration::from_secs(2);

/// Something is sent at least this often while the prompt is computed. Many proxies drop a
/// connection that is silent for 60 s; the client then asks again, and the same prompt is computed twice.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The answer as a stream. An error before admission is still a status, unless admission takes more than two seconds.
pub(super) async fn respond(mut answer: Answer, include_usage: bool) -> Result<Response, ApiError> {
    let cache = match timeout_at(answer.received() + HEADERS_WITHIN, answer.admission()).await {
        Ok(cache) => Some(cache?),
        Err(_) => None,
    };
    let plan = Arc::clone(&answer.plan);
    let (roles, ends) = (vec![false; answer.n_choices()], vec![None; answer.n_choices()]);
    let chunks = Chunks { answer, include_usage, roles, ends, is_over: false };
    let chunks = stream::unfold(chunks, |mut chunks| async {
        chunks.next().await.map(|bytes| (Ok::<_, Infallible>(bytes), chunks))
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // A proxy that buffers the stream would hold back the keep-alives, too; nginx obeys this one.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let mut response = (headers, Body::from_stream(chunks)).into_response();
    if let Some(cache) = cache {
        let value = HeaderValue::from_str(&cache_header(&cache, &plan)).expect("digits and words are a header value");
        response.headers_mut().insert(CACHE_HEADER, value);
    }
    Ok(response)
}

struct Chunks {
    answer: Answer,
    include_usage: bool,
    /// Of each choice whether its first chunk was sent: that one brings the role.
    roles: Vec<bool>,
    /// Of each choice how it ended.
    ends: Vec<Option<Done>>,
    is_over: bool,
}

impl Chunks {
    /// What to send next; `None` ends the stream.
    async fn next(&mut self) -> Option<String> {
        if self.is_over {
            return None;
        }
        Some(match timeout_at(Instant::now() + KEEP_ALIVE, self.answer.next()).await {
            Err(_) => ": keep-alive\n\n".to_owned(),
            Ok(Ok(piece)) => self.spoken(piece),
            Ok(Err(error)) => self.broken(&error),
        })
    }

    fn spoken(&mut self, piece: Piece) -> String {
        let Piece { choice, deltas, logprobs: tokens, end } = piece;
        let mut text = String::new();
        if !std::mem::replace(&mut self.roles[choice], true) {
            text += &event(&self.chunk(choice, json!({ "role": "assistant", "content": "" })));
        }
        let mut chunks: Vec<Value> = deltas.into_iter().map(|delta| self.chunk(choice, fields(delta))).collect();
        if let Some(end) = &end {
            let mut last = self.chunk(choice, json!({}));
            last["choices"][0]["finish_reason"] = finish_reason(end).into();
            chunks.push(last);
        }
        if self.answer.has_logprobs && !tokens.is_empty() {
            chunks[0]["choices"][0]["logprobs"] = logprobs(&tokens);
        }
        text.extend(chunks.iter().map(event));
        if let Some(end) = end {
            self.ends[choice] = Some(end.done);
            text += &self.ended();
        }
        text
    }

    /// What ends the stream, if all choices have ended.
    fn ended(&mut self) -> String {
        let Some(dones) = self.ends.iter().map(Option::as_ref).collect::<Option<Vec<&Done>>>() else {
            return String::new();
        };
        let mut text = String::new();
        if self.include_usage {
            let mut chunk = self.head();
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(&dones, &self.answer.plan);
            text += &event(&chunk);
        }
        self.is_over = true;
        text + "data: [DONE]\n\n"
    }

    fn broken(&mut self, error: &ApiError) -> String {
        self.is_over = true;
        warn!(id = self.answer.id, error = error.log_text(), "stream broken off");
        event(&error.to_json())
    }

    fn chunk(&self, choice: usize, delta: Value) -> Value {
        let mut chunk = self.head();
        chunk["choices"] = json!([{ "index": choice, "delta": delta, "logprobs": null, "finish_reason": null }]);
        if self.include_usage {
            // OpenAI's streams carry the key in each chunk once the client asked for it.
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn head(&self) -> Value {
        json!({
            "id": completion_id(&self.answer.id),
            "object": "chat.completion.chunk",
            "created": self.answer.created,
            "model": self.answer.model,
        })
    }
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

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}
