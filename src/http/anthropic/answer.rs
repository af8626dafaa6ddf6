//! Anthropic's whole answer, and what the streamed one shares with it: reasons, usage, blocks.
//!
//! *Usage* says three things of a prompt's tokens, which add up to all of them: read from the cache, written to it, neither.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::request::Terms;
use crate::http::answer::{Answer, CACHE_HEADER, cache_header, full_report};
use crate::http::choice::End;
use crate::http::error::ApiError;
use crate::prompt::AnswerParts;
use crate::request::{CacheUse, Finish};
use crate::telemetry::PlanRecord;

/// Stands where Anthropic's service signs what was thought. hob checks none; but there are clients that send a thought without
/// one back as if it had been said.
pub(super) const SIGNATURE: &str = "hob";

/// The answer in one piece. Its status waits for the end, so a failure half-way is still a 5xx.
pub(super) async fn respond(answer: Answer, terms: Terms) -> Result<Response, ApiError> {
    let (plan, mut body) = (Arc::clone(&answer.plan), head(&answer));
    let wholes = answer.whole().await?;
    let whole = wholes.first().expect("one choice was asked for");
    body["content"] = content(&whole.parts, terms);
    let (reason, sequence) = stop_reason(&whole.end, terms);
    body["stop_reason"] = reason.into();
    body["stop_sequence"] = sequence.into();
    body["usage"] = usage(&whole.end, &plan);
    let cache = cache_header(&whole.end.done.cache, &plan);
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (CACHE_HEADER, cache)];
    Ok((headers, body.to_string()).into_response())
}

/// A message without content yet.
pub(super) fn head(answer: &Answer) -> Value {
    json!({
        "id": format!("msg_{}", answer.id),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
    })
}

fn content(parts: &AnswerParts, terms: Terms) -> Value {
    let AnswerParts { reasoning, content, calls } = parts;
    let mut blocks = Vec::new();
    if !reasoning.is_empty() {
        let shown = if terms.shows_thinking { reasoning } else { "" };
        blocks.push(json!({ "type": "thinking", "thinking": shown, "signature": SIGNATURE }));
    }
    if !content.is_empty() {
        blocks.push(json!({ "type": "text", "text": content }));
    }
    blocks.extend(calls.iter().filter_map(|call| {
        // One that was cut off is no object, and left out.
        let input: Map<String, Value> = serde_json::from_str(&call.arguments).ok()?;
        Some(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }))
    }));
    blocks.into()
}

/// Why the answer ended, and the client's own text that ended it.
pub(super) fn stop_reason(end: &End, terms: Terms) -> (&'static str, Option<&str>) {
    let done = &end.done;
    match (done.finish, done.stop.as_deref()) {
        _ if end.is_calling => ("tool_use", None),
        (Finish::Length, _) if done.n_generated < terms.max_tokens => ("model_context_window_exceeded", None),
        (Finish::Length, _) => ("max_tokens", None),
        (_, Some(stop)) => ("stop_sequence", Some(stop)),
        (_, None) => ("end_turn", None),
    }
}

pub(super) fn usage(end: &End, plan: &PlanRecord) -> Value {
    let mut usage = prompt_usage(&end.done.cache);
    usage["output_tokens"] = end.done.n_generated.into();
    usage["hob"] = full_report(&end.done, plan).into();
    usage
}

/// Usage before anything was generated. All that is computed of a prompt is kept, but for its last token, which each request
/// computes, held or not.
pub(super) fn prompt_usage(cache: &CacheUse) -> Value {
    let n_computed = cache.n_prompt - cache.n_cached;
    let n_written = n_computed.saturating_sub(1);
    json!({
        "input_tokens": n_computed - n_written,
        "cache_creation_input_tokens": n_written,
        "cache_read_input_tokens": cache.n_cached,
        "output_tokens": 0,
    })
}
