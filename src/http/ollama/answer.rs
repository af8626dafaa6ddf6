//! Ollama's answers: whole, or as lines of JSON.
//!
//! A *line* is one piece of an answer; the last one says `done` and what it cost. Calls come whole: Ollama's clients read the
//! arguments of each as an object.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::request::Route;
use crate::http::answer::{Answer, CACHE_HEADER, cache_header, cache_report};
use crate::http::choice::{End, Piece};
use crate::http::deltas::Delta;
use crate::http::error::ApiError;
use crate::http::logprobs::logprobs;
use crate::http::routes::json_response;
use crate::http::stream::Script;
use crate::prompt::Moment;
use crate::request::{Done, Finish};
use crate::telemetry::PlanRecord;

/// What was asked was to load the model, or to unload it.
pub(super) fn loaded(model: &str, route: Route, reason: &str) -> Response {
    let mut body = head(model);
    said(&mut body, route, "", "", Vec::new());
    body["done"] = true.into();
    body["done_reason"] = reason.into();
    json_response(&body)
}

/// The answer in one piece. Its status waits for the end, so a failure half-way is still a 5xx.
pub(super) async fn respond(answer: Answer, route: Route) -> Result<Response, ApiError> {
    let (plan, model, has_logprobs) = (Arc::clone(&answer.plan), answer.model.clone(), answer.has_logprobs);
    let wholes = answer.whole().await?;
    let whole = wholes.first().expect("one choice was asked for");
    let mut body = head(&model);
    let parts = &whole.parts;
    let calls = parts.calls.iter().enumerate().filter_map(|(index, call)| {
        call_json(index, call.id.as_deref().unwrap_or_default(), &call.name, &call.arguments)
    });
    said(&mut body, route, &parts.content, &parts.reasoning, calls.collect());
    if has_logprobs {
        body["logprobs"] = logprobs(&whole.logprobs);
    }
    ended(&mut body, &whole.end, &plan);
    let cache = cache_header(&whole.end.done.cache, &plan);
    let headers = [(header::CONTENT_TYPE, "application/json".to_owned()), (CACHE_HEADER, cache)];
    Ok((headers, body.to_string()).into_response())
}

pub(super) struct Lines {
    route: Route,
    /// The call that is being told, and its arguments so far.
    call: Option<(usize, String, String, String)>,
}

impl Lines {
    pub(super) fn new(route: Route) -> Lines {
        Lines { route, call: None }
    }

    fn line(&self, answer: &Answer, content: &str, thinking: &str, calls: Vec<Value>) -> Value {
        let mut line = head(&answer.model);
        said(&mut line, self.route, content, thinking, calls);
        line["done"] = false.into();
        line
    }

    /// The call that is complete by now. One that was cut off is no object, and left out.
    fn take_call(&mut self, answer: &Answer) -> Option<Value> {
        let (index, id, name, arguments) = self.call.take()?;
        let call = call_json(index, &id, &name, &arguments)?;
        Some(self.line(answer, "", "", vec![call]))
    }
}

impl Script for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn piece(&mut self, answer: &Answer, piece: Piece) -> String {
        let mut lines = Vec::new();
        for delta in piece.deltas {
            match delta {
                Delta::Reasoning(text) => lines.push(self.line(answer, "", &text, Vec::new())),
                Delta::Content(text) => lines.push(self.line(answer, &text, "", Vec::new())),
                Delta::CallBegun { index, id, name, arguments } => {
                    lines.extend(self.take_call(answer));
                    self.call = Some((index, id, name, arguments));
                }
                Delta::CallArguments { piece, .. } => {
                    self.call.as_mut().expect("a call has begun before it goes on").3.push_str(&piece);
                }
            }
        }
        if let Some(end) = &piece.end {
            lines.extend(self.take_call(answer));
            let mut last = self.line(answer, "", "", Vec::new());
            ended(&mut last, end, &answer.plan);
            lines.push(last);
        }
        if answer.has_logprobs && !piece.logprobs.is_empty() && !lines.is_empty() {
            lines[0]["logprobs"] = logprobs(&piece.logprobs);
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }

    /// Clients have no other word for waiting; one that says nothing adds nothing.
    fn keep_alive(&mut self, answer: &Answer) -> String {
        format!("{}\n", self.line(answer, "", "", Vec::new()))
    }

    fn broken(&mut self, _: &Answer, error: &ApiError) -> String {
        format!("{}\n", error.to_ollama())
    }
}

fn head(model: &str) -> Value {
    json!({ "model": model, "created_at": Moment::now().rfc3339() })
}

fn said(body: &mut Value, route: Route, content: &str, thinking: &str, calls: Vec<Value>) {
    match route {
        Route::Chat => {
            let mut message = json!({ "role": "assistant", "content": content });
            if !thinking.is_empty() {
                message["thinking"] = thinking.into();
            }
            if !calls.is_empty() {
                message["tool_calls"] = calls.into();
            }
            body["message"] = message;
        }
        Route::Generate => {
            body["response"] = content.into();
            if !thinking.is_empty() {
                body["thinking"] = thinking.into();
            }
        }
    }
}

fn call_json(index: usize, id: &str, name: &str, arguments: &str) -> Option<Value> {
    let arguments: Map<String, Value> = serde_json::from_str(arguments).ok()?;
    Some(json!({ "id": id, "function": { "index": index, "name": name, "arguments": arguments } }))
}

fn ended(body: &mut Value, end: &End, plan: &PlanRecord) {
    let Done { finish, cache, n_generated, timings, .. } = &end.done;
    body["done"] = true.into();
    body["done_reason"] = if *finish == Finish::Length { "length" } else { "stop" }.into();
    let total = timings.queue + timings.prefill + timings.decode;
    let nanoseconds = |duration: Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    body["total_duration"] = nanoseconds(total).into();
    // The model is loaded before it is asked.
    body["load_duration"] = 0.into();
    body["prompt_eval_count"] = cache.n_prompt.into();
    body["prompt_eval_duration"] = nanoseconds(timings.prefill).into();
    body["eval_count"] = (*n_generated).into();
    body["eval_duration"] = nanoseconds(timings.decode).into();
    let hob: Map<String, Value> =
        cache_report(cache, plan).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    body["hob"] = hob.into();
}
