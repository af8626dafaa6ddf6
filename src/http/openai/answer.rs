//! OpenAI's whole answer, and the usage object that the streamed one shares.
//!
//! *Usage* is what a request cost in tokens; `usage.hob` adds what the cache did and how long each part took.

use std::time::Duration;

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::http::answer::{Answer, cache_header};
use crate::http::error::ApiError;
use crate::request::Done;

pub(super) const CACHE_HEADER: HeaderName = HeaderName::from_static("x-hob-cache");

/// The answer in one piece. Its status waits for the end, so a failure half-way is still a 5xx.
pub(super) async fn respond(answer: Answer) -> Result<Response, ApiError> {
    let head = json!({
        "id": completion_id(&answer.id),
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
    });
    let (text, done) = answer.whole().await?;
    let mut body = head;
    body["choices"] = json!([{
        "index": 0,
        "message": { "role": "assistant", "content": text, "refusal": null },
        "logprobs": null,
        "finish_reason": done.finish.name(),
    }]);
    body["usage"] = usage(&done);
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (CACHE_HEADER, cache_header(&done.cache))];
    Ok((headers, body.to_string()).into_response())
}

pub(super) fn completion_id(id: &str) -> String {
    format!("chatcmpl-{id}")
}

pub(super) fn usage(done: &Done) -> Value {
    let Done { cache, n_generated, timings, .. } = done;
    json!({
        "prompt_tokens": cache.n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": cache.n_prompt + n_generated,
        "prompt_tokens_details": { "cached_tokens": cache.n_cached },
        "hob": {
            "reused": cache.n_cached,
            "of": cache.n_prompt,
            "restored": cache.n_restored,
            "cause": cache.cause.name(),
            "queue_ms": milliseconds(timings.queue),
            "ttft_ms": timings.ttft.map(milliseconds),
            "prefill_ms": milliseconds(timings.prefill),
            "decode_ms": milliseconds(timings.decode),
        },
    })
}

/// To a tenth: a warm prefill takes few milliseconds.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
