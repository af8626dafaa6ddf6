//! Pins: what is kept warm, taken in and taken away; and what is forgotten. `/hob/v1/pins`, `/hob/v1/forget`.
//!
//! A client that may use these routes has pins of its own. What concerns the whole house is for those who may use all of `/hob/`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::access::Caller;
use super::answer::App;
use super::error::ApiError;
use super::ready::pin_progress;
use super::routes::json_response;
use super::{body, fields, openai};
use crate::prompt::PinWish;
use crate::request::{Client, Dialect, Owner};
use crate::scheduler::PinStatus;

/// A name is a word in a path.
const NAME_BYTES_MAX: usize = 64;

pub(super) async fn pins(State(app): State<Arc<App>>) -> Response {
    let status = app.house.status();
    let speed = status.prefill_tokens_per_second;
    let pins: Vec<Value> = status.pins.iter().map(|pin| pin_json(pin, speed)).collect();
    json_response(&json!({ "pins": pins }))
}

/// Pins what stands in front of the conversation in a chat request.
pub(super) async fn add(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    #[derive(Deserialize)]
    struct Wire {
        name: String,
        request: Box<RawValue>,
        #[serde(default)]
        public: bool,
    }
    let body = body::read(body, app.max_body).await?;
    let wire: Wire = fields::body(&body)?;
    if !is_name(&wire.name) {
        let reason = format!("must be 1 to {NAME_BYTES_MAX} of a-z, A-Z, 0-9, `.`, `_`, `-`");
        return Err(ApiError::field("name", reason));
    }
    if wire.public && !caller.is_admin {
        return Err(ApiError::not_from_elsewhere("a pin for the whole house"));
    }
    let request = openai::parse_request(wire.request.get().as_bytes(), &caller.name)?;
    if request.wanted.adapters.is_some() {
        return Err(ApiError::field(
            "request.lora",
            "a pin is kept under its model's adapters: a profile can name others",
        ));
    }
    app.house.pin(PinWish::of(wire.name.clone(), wire.public, &request)).await?;
    let status = app.house.status();
    let pin = status.pins.iter().find(|pin| pin.name == wire.name);
    let pin = pin.map(|pin| pin_json(pin, status.prefill_tokens_per_second));
    Ok(json_response(&pin.unwrap_or_else(|| json!({ "name": wire.name }))))
}

pub(super) async fn remove(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    uri: Uri,
    name: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|_| ApiError::unknown_route(uri.path()))?;
    let owner = (!caller.is_admin).then(|| caller.owner());
    match app.house.unpin(name.clone(), owner).await? {
        true => Ok(json_response(&json!({ "removed": name }))),
        false => Err(ApiError::unknown_pin(&name)),
    }
}

/// Forgets what a client left; `all`: what any did.
pub(super) async fn forget(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Result<Response, ApiError> {
    #[derive(Deserialize)]
    struct Wire {
        client: String,
    }
    let Wire { client } = fields::body(&body::read(body, app.max_body).await?)?;
    if client.is_empty() {
        return Err(ApiError::field("client", "must be a client's name, or \"all\""));
    }
    if !caller.is_admin && *client != *caller.name {
        return Err(ApiError::not_from_elsewhere("to forget another client"));
    }
    let whose = (client != "all").then(|| owner_of(&client));
    let forgotten = app.house.forget(whose).await?;
    Ok(json_response(&json!({
        "client": client,
        "cells": forgotten.n_cells,
        "segments": forgotten.n_segments,
        "pins": forgotten.n_pins,
        "answers": forgotten.n_answers,
    })))
}

/// Whose requests a client's own are.
fn owner_of(client: &str) -> Owner {
    Client { name: client.to_owned(), salt: None, dialect: Dialect::OpenAi }.owner()
}

fn is_name(name: &str) -> bool {
    let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_fit) && !name.starts_with('.')
}

fn pin_json(pin: &PinStatus, tokens_per_second: u64) -> Value {
    let mut value = pin_progress(pin);
    value["configured"] = pin.is_configured.into();
    value["public"] = pin.is_public.into();
    value["tier"] = pin.tier.into();
    value["age_s"] = pin.since.elapsed().as_secs().into();
    value["hits"] = pin.n_hits.into();
    value["reused"] = pin.n_reused.into();
    if let Some(fault) = pin.file_fault {
        value["file_fault"] = fault.name().into();
    }
    // Unknown until something was computed.
    let saved = pin.n_reused as f64 / tokens_per_second as f64;
    value["saved_s"] = (tokens_per_second > 0).then(|| (10.0 * saved).round() / 10.0).into();
    value
}
