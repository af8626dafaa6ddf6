//! Anthropic's dialect: messages, and how many tokens they have.
//!
//! `request` parses, with `message` for its messages and `tools` for its tools; `answer` renders a whole answer, `stream` a
//! streamed one. A *block* is one piece of a message's content: a text, a thought, a call, a call's result.

mod answer;
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
use super::error::{ApiError, SCHEMA};
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
    let begun = Answer::begin(&app, Asked { request, n_choices: 1, id, received }).await;
    let answer = begun.map_err(|error| {
        error.renamed(SCHEMA, "output_config.format.schema").renamed(".function.parameters", ".input_schema")
    })?;
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
