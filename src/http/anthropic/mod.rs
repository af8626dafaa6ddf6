//! Anthropic's dialect: messages, and how many tokens they have.
//!
//! `request` parses, with `message` for its messages and `tools` for its tools; `answer` renders a whole answer, `stream` a
//! streamed one. A *block* is one piece of a message's content: a text, a thought, a call, a call's result.

mod answer;
mod content;
mod message;
mod request;
mod stream;
#[cfg(test)]
mod tests;
mod tools;

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::json;
use tokio::time::Instant;

use self::request::Question;
use self::stream::Events;
use super::access::Caller;
use super::answer::{Answer, App, Asked, RequestId};
use super::error::ApiError;
use super::routes::json_response;
use super::{body, stream as streamed, wishes};

pub(super) async fn messages(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(id): Extension<RequestId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = body::read(body, app.max_body).await?;
    let received = Instant::now();
    let Question { mut request, is_streamed, terms } = request::parse(&body, &caller.name)?;
    wishes::settle(&mut request, &headers, &caller, &app.house.models())?;
    let answer = Answer::begin(&app, Asked { request, n_choices: 1, id, received }).await?;
    match is_streamed {
        true => streamed::respond(answer, Events::new(terms)).await,
        false => answer::respond(answer, terms).await,
    }
}

pub(super) async fn count_tokens(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, ApiError> {
    let body = body::read(body, app.max_body).await?;
    let mut request = request::parse_counted(&body, &caller.name)?;
    wishes::settle(&mut request, &headers, &caller, &app.house.models())?;
    let n_tokens = app.house.count(request).await?;
    Ok(json_response(&json!({ "input_tokens": n_tokens })))
}
