//! What a request is told beside its body: by its headers, else by what is configured of its client.

use axum::http::HeaderMap;

use super::access::Caller;
use super::error::ApiError;
use crate::request::{LayoutMode, Priority, Request};

/// What may be moved in its prompt.
const LAYOUT: &str = "x-hob-layout";
/// Of jobs that nobody waits for: a title, tags.
const PRIORITY: &str = "x-hob-priority";

/// Completes `request`. `models`: the names that are here.
pub(super) fn settle(
    request: &mut Request,
    headers: &HeaderMap,
    caller: &Caller,
    models: &[String],
) -> Result<(), ApiError> {
    request.layout = word(headers, LAYOUT, &LayoutMode::NAMES)?.or(caller.layout());
    // A client says when one of its requests may wait; no request goes before what its client may.
    request.priority = word(headers, PRIORITY, &Priority::NAMES)?.unwrap_or_default().min(caller.priority());
    caller.choose_model(&mut request.model, models);
    Ok(())
}

fn word<T: Copy>(headers: &HeaderMap, header: &str, names: &[(&str, T)]) -> Result<Option<T>, ApiError> {
    let Some(value) = headers.get(header) else { return Ok(None) };
    let found = names.iter().find(|(name, _)| value == name);
    let (_, meant) = found.ok_or_else(|| {
        let names = names.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        ApiError::field(header, format!("{value:?}: must be one of {names}"))
    })?;
    Ok(Some(*meant))
}
