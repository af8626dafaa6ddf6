//! A whole response, and the objects that the growing one shares with it.
//!
//! An *output item* is one part of an answer: what was thought, what was said, one call.

use std::sync::Arc;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::request::Echo;
use crate::http::answer::{Answer, CACHE_HEADER, cache_header, full_report};
use crate::http::choice::End;
use crate::http::error::ApiError;
use crate::http::logprobs::logprobs;
use crate::request::{Finish, TokenLogprob};
use crate::telemetry::PlanRecord;

/// The response in one piece. Its status waits for the end, so a failure half-way is still a 5xx.
pub(super) async fn respond(answer: Answer, echo: Echo) -> Result<Response, ApiError> {
    let (id, plan) = (answer.id.clone(), Arc::clone(&answer.plan));
    let mut body = begun(&answer, &echo);
    let wholes = answer.whole().await?;
    let whole = wholes.first().expect("one choice was asked for");
    let (parts, status) = (&whole.parts, status(&whole.end));
    let mut output = Vec::new();
    if !parts.reasoning.is_empty() {
        output.push(reasoning(&id, &parts.reasoning, "completed"));
    }
    if !parts.content.is_empty() || parts.calls.is_empty() {
        output.push(message(&id, &parts.content, &whole.logprobs, status));
    }
    output.extend(parts.calls.iter().enumerate().map(|(index, call)| {
        let call_id = call.id.as_deref().expect("each call has an id");
        function_call(&id, index, (call_id, &call.name, &call.arguments), status)
    }));
    end(&mut body, output, &whole.end, &plan);
    let cache = cache_header(&whole.end.done.cache, &plan);
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (CACHE_HEADER, cache)];
    Ok((headers, body.to_string()).into_response())
}

/// A response of which nothing is said yet.
pub(super) fn begun(answer: &Answer, echo: &Echo) -> Value {
    let mut body = json!({
        "id": format!("resp_{}", answer.id),
        "object": "response",
        "created_at": answer.created,
        "status": "in_progress",
        "background": false,
        "error": null,
        "incomplete_details": null,
        "model": answer.model,
        "output": [],
        "previous_response_id": null,
        "service_tier": "default",
        "store": false,
        "usage": null,
    });
    body.as_object_mut().expect("it is written as one").extend(echo.0.clone());
    body
}

pub(super) fn end(body: &mut Value, output: Vec<Value>, end: &End, plan: &PlanRecord) {
    body["status"] = status(end).into();
    body["output"] = output.into();
    if end.done.finish == Finish::Length {
        body["incomplete_details"] = json!({ "reason": "max_output_tokens" });
    }
    body["usage"] = usage(end, plan);
}

pub(super) fn status(end: &End) -> &'static str {
    if end.done.finish == Finish::Length { "incomplete" } else { "completed" }
}

pub(super) fn reasoning(id: &str, text: &str, status: &str) -> Value {
    let content: Vec<Value> = Some(text).filter(|text| !text.is_empty()).map(reasoning_part).into_iter().collect();
    json!({ "id": format!("rs_{id}"), "type": "reasoning", "summary": [], "content": content, "status": status })
}

pub(super) fn reasoning_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}

pub(super) fn message(id: &str, text: &str, tokens: &[TokenLogprob], status: &str) -> Value {
    let content = [text_part(text, tokens)];
    json!({ "id": format!("msg_{id}"), "type": "message", "role": "assistant", "status": status, "content": content })
}

pub(super) fn text_part(text: &str, tokens: &[TokenLogprob]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs(tokens) })
}

/// `call`: its id for the result, the tool's name, the arguments as JSON text.
pub(super) fn function_call(id: &str, index: usize, call: (&str, &str, &str), status: &str) -> Value {
    let (call_id, name, arguments) = call;
    json!({
        "id": format!("fc_{id}_{index}"),
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    })
}

/// What was computed of the prompt is held from now on, so that is what was written to the cache.
fn usage(end: &End, plan: &PlanRecord) -> Value {
    let (cache, n_generated) = (&end.done.cache, end.done.n_generated);
    json!({
        "input_tokens": cache.n_prompt,
        "input_tokens_details": {
            "cached_tokens": cache.n_cached,
            "cache_write_tokens": cache.n_prompt - cache.n_cached,
        },
        "output_tokens": n_generated,
        "output_tokens_details": { "reasoning_tokens": end.n_thinking },
        "total_tokens": cache.n_prompt + n_generated,
        "hob": full_report(&end.done, plan),
    })
}
