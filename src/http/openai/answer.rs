//! OpenAI's whole answer, and the usage object that the streamed one shares.
//!
//! *Usage* is what a request cost in tokens; `usage.hob` adds what the cache did and how long each part took.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::http::answer::{Answer, CACHE_HEADER, cache_header, full_report};
use crate::http::choice::End;
use crate::http::error::ApiError;
use crate::http::logprobs::logprobs;
use crate::prompt::AnswerParts;
use crate::request::TokenLogprob;
use crate::telemetry::PlanRecord;

/// The answer in one piece. Its status waits for the end, so a failure half-way is still a 5xx.
pub(super) async fn respond(answer: Answer) -> Result<Response, ApiError> {
    let head = json!({
        "id": completion_id(&answer.id),
        "object": "chat.completion",
        "created": answer.created,
        "model": answer.model,
    });
    let (plan, has_logprobs) = (Arc::clone(&answer.plan), answer.has_logprobs);
    let wholes = answer.whole().await?;
    let mut body = head;
    let choices = wholes.iter().enumerate().map(|(index, whole)| {
        json!({
            "index": index,
            "message": message(&whole.parts),
            "logprobs": has_logprobs.then(|| logprobs_json(&whole.logprobs)),
            "finish_reason": finish_reason(&whole.end),
        })
    });
    body["choices"] = choices.collect();
    let ends: Vec<&End> = wholes.iter().map(|whole| &whole.end).collect();
    body["usage"] = usage(&ends, &plan);
    let cache = cache_header(&ends[0].done.cache, &plan);
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (CACHE_HEADER, cache)];
    Ok((headers, body.to_string()).into_response())
}

/// `content` is null where there are calls alone.
fn message(parts: &AnswerParts) -> Value {
    let AnswerParts { reasoning, content, calls } = parts;
    let mut message = json!({ "role": "assistant", "content": content });
    if content.is_empty() && !calls.is_empty() {
        message["content"] = Value::Null;
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = reasoning.as_str().into();
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let function = json!({ "name": call.name, "arguments": call.arguments });
            json!({ "id": call.id, "type": "function", "function": function })
        });
        message["tool_calls"] = calls.collect();
    }
    message["refusal"] = Value::Null;
    message
}

pub(super) fn logprobs_json(tokens: &[TokenLogprob]) -> Value {
    json!({ "content": logprobs(tokens), "refusal": null })
}

pub(super) fn finish_reason(end: &End) -> &'static str {
    if end.is_calling { "tool_calls" } else { end.done.finish.name() }
}

pub(super) fn completion_id(id: &str) -> String {
    format!("chatcmpl-{id}")
}

/// Of all choices, the first first: the prompt is theirs together, and what the cache did is told of the first.
pub(super) fn usage(ends: &[&End], plan: &PlanRecord) -> Value {
    let first = &ends[0].done;
    let cache = &first.cache;
    let n_generated: usize = ends.iter().map(|end| end.done.n_generated).sum();
    let n_thinking: usize = ends.iter().map(|end| end.n_thinking).sum();
    json!({
        "prompt_tokens": cache.n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": cache.n_prompt + n_generated,
        // What was computed of the prompt is held from now on.
        "prompt_tokens_details": {
            "cached_tokens": cache.n_cached,
            "cache_write_tokens": cache.n_prompt - cache.n_cached,
        },
        "completion_tokens_details": { "reasoning_tokens": n_thinking },
        "hob": full_report(first, plan),
    })
}
