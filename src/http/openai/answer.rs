//! OpenAI's whole answer, and the usage object that the streamed one shares.
//!
//! *Usage* is what a request cost in tokens; `usage.hob` adds what the cache did and how long each part took.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use crate::http::answer::{Answer, cache_header, cache_report};
use crate::http::error::ApiError;
use crate::request::Done;
use crate::telemetry::PlanRecord;

pub(super) const CACHE_HEADER: HeaderName = HeaderName::from_static("x-hob-cache");

/// The answer in one piece. Its status waits for the end, so a failure half-way is still a 5xx.
pub(super) async fn respond(answer: Answer) -> Result<Response, ApiError> {
    let head = json!({
        "id": completion_id(&answer.id),
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
    });
    let plan = Arc::clone(&answer.plan);
    let (text, done) = answer.whole().await?;
    let mut body = head;
    body["choices"] = json!([{
        "index": 0,
        "message": { "role": "assistant", "content": text, "refusal": null },
        "logprobs": null,
        "finish_reason": done.finish.name(),
    }]);
    body["usage"] = usage(&done, &plan);
    let headers =
        [(header::CONTENT_TYPE, "application/json".to_owned()), (CACHE_HEADER, cache_header(&done.cache, &plan))];
    Ok((headers, body.to_string()).into_response())
}

pub(super) fn completion_id(id: &str) -> String {
    format!("chatcmpl-{id}")
}

pub(super) fn usage(done: &Done, plan: &PlanRecord) -> Value {
    let Done { cache, n_generated, timings, .. } = done;
    let mut hob: Map<String, Value> =
        cache_report(cache, plan).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    hob.insert("queue_ms".to_owned(), milliseconds(timings.queue).into());
    hob.insert("ttft_ms".to_owned(), timings.ttft.map(milliseconds).into());
    hob.insert("prefill_ms".to_owned(), milliseconds(timings.prefill).into());
    hob.insert("decode_ms".to_owned(), milliseconds(timings.decode).into());
    json!({
        "prompt_tokens": cache.n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": cache.n_prompt + n_generated,
        "prompt_tokens_details": { "cached_tokens": cache.n_cached },
        "hob": hob,
    })
}

/// To a tenth: a warm prefill takes few milliseconds.
fn milliseconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}
