//! What can be seen of the house: whether it is ready, its cells.
//!
//! *Ready* means that each pin is warm, so that the first question is as fast as the hundredth; after
//! `server.start_wait` a house that is still warming says 200 with `degraded`, since slow answers beat none. A caller without a key
//! that is needed is told the word alone.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::access::Caller;
use super::answer::App;
use super::routes::json_response;
use crate::scheduler::{PinStatus, Status};
use crate::sources::{Group, Readings};

pub(super) async fn ready(State(app): State<Arc<App>>, caller: Option<Extension<Caller>>) -> Response {
    let status = app.house.status();
    let is_warm = status.pins.iter().all(|pin| pin.is_warm);
    let (code, word) = if is_warm {
        (StatusCode::OK, "ready")
    } else if app.started.elapsed() >= app.start_wait {
        (StatusCode::OK, "degraded")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "warming")
    };
    if caller.is_none() {
        return (code, json_response(&json!({ "status": word }))).into_response();
    }
    let mut body = progress(word, &status);
    let live = failing(&app.house.live());
    if !live.is_empty() {
        body["live"] = live.into();
    }
    (code, json_response(&body)).into_response()
}

pub(super) async fn cache(State(app): State<Arc<App>>) -> Response {
    let Status { cells, n_running, n_waiting, prefill_tokens_per_second, n_adapter_switches, .. } = app.house.status();
    json_response(&json!({
        "cells": {
            "total": cells.total,
            "free": cells.free,
            "evictable": cells.evictable,
            "pinned": cells.pinned,
            "held": cells.held,
            "reserved": cells.reserved,
        },
        "running": n_running,
        "waiting": n_waiting,
        "prefill_tokens_per_second": prefill_tokens_per_second,
        "adapter_switches": n_adapter_switches,
    }))
}

fn progress(word: &str, status: &Status) -> Value {
    let n_left: usize = status.pins.iter().map(|pin| pin.n_tokens.saturating_sub(pin.n_done)).sum();
    let speed = status.prefill_tokens_per_second;
    let mut progress = json!({
        "status": word,
        "memory": status.memory,
        "pins": status.pins.iter().map(pin_progress).collect::<Vec<_>>(),
        "tokens_per_second": speed,
        // Unknown until something was computed.
        "seconds_left": (speed > 0).then(|| (n_left as u64).div_ceil(speed)),
    });
    if let Some(n_bytes) = status.checkpoint_bytes {
        progress["checkpoint_bytes"] = n_bytes.into();
    }
    progress
}

/// Live values that could not be read last time: answers go on, with an older value or without one.
fn failing(readings: &Readings) -> Vec<Value> {
    let of_group = |group: &Group| {
        let failing = group.readings.iter().filter_map(|reading| {
            let failure = reading.failure.as_ref()?;
            Some(json!({ "profile": group.name, "name": reading.name, "failure": failure, "read_at": reading.read_at }))
        });
        failing.collect::<Vec<_>>()
    };
    readings.0.iter().flat_map(of_group).collect()
}

pub(super) fn pin_progress(pin: &PinStatus) -> Value {
    json!({ "name": pin.name, "tokens": pin.n_tokens, "done": pin.n_done, "warm": pin.is_warm })
}
