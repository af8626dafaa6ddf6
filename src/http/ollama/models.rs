//! What Ollama's clients ask of models: which there are, what they can do, which is loaded.
//!
//! Every profile and the model itself is a *model* to them. There is one file behind all, loaded as long as the daemon runs.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::http::ModelCard;
use crate::http::answer::App;
use crate::http::error::ApiError;
use crate::http::routes::json_response;
use crate::http::{body, fields};
use crate::prompt::Moment;

/// What a name without a version means to Ollama's clients.
const TAG: &str = ":latest";

/// The version of Ollama whose routes these are like; some clients refuse older ones.
const VERSION: &str = "0.13.0";

/// A model that is not unloaded: clients show when it would be.
const NEVER: &str = "9999-12-31T23:59:59Z";

pub(in crate::http) async fn tags(State(app): State<Arc<App>>) -> Response {
    let card = app.house.card();
    let models = app.house.models();
    json_response(&json!({ "models": models.iter().map(|name| model_json(name, card)).collect::<Vec<_>>() }))
}

/// All of them: they are one file.
pub(in crate::http) async fn ps(State(app): State<Arc<App>>) -> Response {
    let card = app.house.card();
    let models = app.house.models().into_iter().map(|name| {
        let mut model = model_json(&name, card);
        model["expires_at"] = NEVER.into();
        // How much of it a GPU holds is not known here.
        model["size_vram"] = 0.into();
        model["context_length"] = app.house.context().into();
        model
    });
    json_response(&json!({ "models": models.collect::<Vec<_>>() }))
}

pub(in crate::http) async fn version() -> Response {
    json_response(&json!({ "version": VERSION }))
}

pub(in crate::http) async fn show(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let model = known(&app, &named(&app, body).await?)?;
    let card = app.house.card();
    let mut capabilities = vec!["completion", "tools"];
    if card.switches_thinking {
        capabilities.push("thinking");
    }
    let architecture = &card.architecture;
    let context_length = format!("{architecture}.context_length");
    let width = format!("{architecture}.embedding_length");
    Ok(json_response(&json!({
        "modelfile": format!("FROM {model}"),
        "parameters": format!("num_ctx {}", app.house.context()),
        // The prompt is made from the model's own Jinja template, which is none of Ollama's.
        "template": "",
        "details": details(card),
        "model_info": {
            "general.architecture": architecture,
            context_length: card.n_context_train.min(app.house.context() as u64),
            width: card.width,
        },
        "capabilities": capabilities,
        "modified_at": modified_at(card),
    })))
}

/// Models come with the configuration: one that is here is told to be, any other is refused at once.
pub(in crate::http) async fn pull(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    known(&app, &named(&app, body).await?)?;
    let headers = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((headers, "{\"status\":\"success\"}\n").into_response())
}

/// How a context pools is fixed when it is made, and hob's is made to answer.
pub(in crate::http) async fn embed(State(app): State<Arc<App>>, body: Body) -> Result<Response, ApiError> {
    let model = known(&app, &named(&app, body).await?)?;
    Err(ApiError::field("model", format!("{model} answers chats and makes no embeddings; hob has no second model yet")))
}

/// The model that is there by this name.
pub(super) fn known(app: &App, name: &str) -> Result<String, ApiError> {
    let models = app.house.models();
    let mut name = name.to_owned();
    without_tag(&mut name, &models);
    match models.contains(&name) {
        true => Ok(name),
        false => {
            let known = models.join(", ");
            Err(ApiError::unknown_model(format!("model '{name}' not found; there are: {known}")))
        }
    }
}

/// Takes off what says no more than that no version was named.
pub(super) fn without_tag(name: &mut String, models: &[String]) {
    if !models.contains(name)
        && let Some(bare) = name.strip_suffix(TAG)
    {
        *name = bare.to_owned();
    }
}

/// The model that a body names; older clients call it `name`.
async fn named(app: &App, body: Body) -> Result<String, ApiError> {
    #[derive(Deserialize)]
    struct Wire {
        model: Option<String>,
        name: Option<String>,
    }
    let Wire { model, name } = fields::body(&body::read(body, app.max_body).await?)?;
    let name = model.or(name).filter(|name| !name.is_empty());
    name.ok_or_else(|| ApiError::field("model", "is required"))
}

fn model_json(name: &str, card: &ModelCard) -> Value {
    json!({
        "name": name,
        "model": name,
        "modified_at": modified_at(card),
        "size": card.weight_bytes,
        "digest": digest(name, card),
        "details": details(card),
    })
}

/// Tells one entry from another; it is not made of the file's bytes.
fn digest(name: &str, card: &ModelCard) -> String {
    let facts = format!("{name}\0{}\0{}\0{}", card.architecture, card.weight_bytes, card.modified_s);
    blake3::hash(facts.as_bytes()).to_hex().to_string()
}

fn details(card: &ModelCard) -> Value {
    json!({
        "parent_model": "",
        "format": "gguf",
        "family": card.architecture,
        "families": [card.architecture],
        "parameter_size": "",
        "quantization_level": "",
    })
}

fn modified_at(card: &ModelCard) -> String {
    Moment::utc(card.modified_s).rfc3339()
}
