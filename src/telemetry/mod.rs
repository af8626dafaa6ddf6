//! Telemetry: what the cache did for the house, in one SQLite file. A leaf: it knows nothing of the other rooms.
//!
//! One thread owns the connection and writes in batches; senders never wait, a full inbox drops and counts.
//! Prompt text is never stored.

use std::time::Duration;

/// What a request is called in telemetry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// `x-request-id`.
    pub id: String,
    pub client: String,
    pub profile: Option<String>,
    pub dialect: &'static str,
}

/// One thing to remember.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Request(RequestRecord),
    Eviction(EvictionRecord),
    Cells(CellsRecord),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RequestRecord {
    pub label: Label,
    pub n_prompt: usize,
    /// Tokens that were in the cells already.
    pub n_reused_cells: usize,
    pub n_generated: usize,
    pub queue: Duration,
    pub ttft: Option<Duration>,
    /// Time from admission to the end of the prompt.
    pub prefill: Duration,
    pub decode: Duration,
    /// "stop", "length", "cancelled", "error", "refused".
    pub finish: &'static str,
    /// Why the first computed token was computed.
    pub cause: &'static str,
    /// Index of that token.
    pub miss_at: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvictionRecord {
    pub n_cells: usize,
    /// "cells" (room was needed) or "ids" (a sequence id was).
    pub cause: &'static str,
}

/// Use of the cells while requests ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellsRecord {
    pub free: usize,
    pub evictable: usize,
    pub pinned: usize,
    pub held: usize,
    pub reserved: usize,
    pub n_running: usize,
    pub n_waiting: usize,
}
