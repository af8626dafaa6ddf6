//! What was answered and why it cost what it cost: `/hob/v1/requests`.
//!
//! The accounts are telemetry's, as `hob why --json` prints them; here are the routes alone.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::App;
use super::error::ApiError;
use super::routes::json_response;
use crate::telemetry::{Account, Wanted};

/// Without `?limit=`: some screens.
const LIMIT_DEFAULT: usize = 50;
/// A row is one or two kilobytes of JSON.
const LIMIT_MAX: usize = 1_000;

/// Newest first.
pub(super) async fn requests(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    let accounts = accounts(&app, Wanted::Newest(limit(&uri)?)).await?;
    Ok(json_response(&json!({ "requests": accounts })))
}

/// By `x-request-id`.
pub(super) async fn request(
    State(app): State<Arc<App>>,
    uri: Uri,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|_| ApiError::unknown_route(uri.path()))?;
    let found = accounts(&app, Wanted::Id(id.clone())).await?.into_iter().next();
    found.map(|account| json_response(&account)).ok_or_else(|| ApiError::unknown_request(&id))
}

async fn accounts(app: &App, wanted: Wanted) -> Result<Vec<Value>, ApiError> {
    let rows = app.house.requests(wanted).await?;
    let ram_bytes = app.house.status().lower_budgets.ram;
    let account = |row| serde_json::to_value(Account::of(row, app.house.context(), ram_bytes));
    let accounts: Result<_, _> = rows.into_iter().map(account).collect();
    accounts.map_err(|error| ApiError::internal(format!("an account is no JSON: {error}")))
}

fn limit(uri: &Uri) -> Result<usize, ApiError> {
    let pairs = uri.query().into_iter().flat_map(|query| query.split('&'));
    let Some(value) = pairs.filter_map(|pair| pair.strip_prefix("limit=")).next_back() else {
        return Ok(LIMIT_DEFAULT);
    };
    let limit = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| ApiError::field("limit", format!("{value:?}: must be 1 to {LIMIT_MAX}")))
}
