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

use super::answer::{CACHE_HEADER, completion_id, usage};
use crate::http::answer::{Answer, cache_header};
use crate::http::error::ApiError;
use crate::request::{Done, Event};

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
    let chunks = stream::unfold(Chunks { answer, include_usage, state: State::Silent }, |mut chunks| async {
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
    state: State,
}

enum State {
    /// No chunk has been sent: the first one brings the role.
    Silent,
    Speaking,
    Ended,
}

impl Chunks {
    /// What to send next; `None` ends the stream.
    async fn next(&mut self) -> Option<String> {
        if matches!(self.state, State::Ended) {
            return None;
        }
        let deadline = Instant::now() + KEEP_ALIVE;
        loop {
            return Some(match timeout_at(deadline, self.answer.next()).await {
                Err(_) => ": keep-alive\n\n".to_owned(),
                Ok(Ok(Event::Text(text))) => self.opened(&self.chunk(json!({ "content": text }), None)),
                Ok(Ok(Event::Done(done))) => self.ended(&done),
                // Nothing to say about it: the headers are out.
                Ok(Ok(Event::Admitted(_) | Event::Logprobs(_) | Event::Failed(_))) => continue,
                Ok(Err(error)) => self.broken(&error),
            });
        }
    }

    /// `chunk` as an event, after the role if it is the first.
    fn opened(&mut self, chunk: &Value) -> String {
        match std::mem::replace(&mut self.state, State::Speaking) {
            State::Silent => {
                let role = self.chunk(json!({ "role": "assistant", "content": "" }), None);
                event(&role) + &event(chunk)
            }
            State::Speaking | State::Ended => event(chunk),
        }
    }

    fn ended(&mut self, done: &Done) -> String {
        let mut text = self.opened(&self.chunk(json!({}), Some(done.finish.name())));
        if self.include_usage {
            let mut chunk = self.head();
            chunk["choices"] = json!([]);
            chunk["usage"] = usage(done, &self.answer.plan);
            text += &event(&chunk);
        }
        self.state = State::Ended;
        text + "data: [DONE]\n\n"
    }

    fn broken(&mut self, error: &ApiError) -> String {
        self.state = State::Ended;
        warn!(id = self.answer.id, error = error.log_text(), "stream broken off");
        event(&error.to_json())
    }

    fn chunk(&self, delta: Value, finish_reason: Option<&str>) -> Value {
        let mut chunk = self.head();
        chunk["choices"] = json!([{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason }]);
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

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}
