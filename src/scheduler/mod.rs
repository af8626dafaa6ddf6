//! The scheduler: one OS thread that owns the engine, the prefix tree, the budget, the queue and the running sequences.
//!
//! A *step* is one `decode` call: a token for every decoding sequence, then prefill chunks under the token budget.
//! This file is the door: what others send in and what they can watch. It decides nothing.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc as async_mpsc, watch};

use crate::request::{Event, Owner, Sampling, TokenPrompt};

/// Everything the scheduler must know of a request.
pub struct Submission {
    pub prompt: TokenPrompt,
    pub sampling: Sampling,
    /// `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub owner: Owner,
    /// When the request was read: TTFT counts from here.
    pub received: Instant,
    /// What telemetry should know of it; the scheduler only passes it on.
    pub label: crate::telemetry::Label,
    /// Where the answer goes. Dropping the receiver cancels the request between two steps.
    pub events: async_mpsc::Sender<Event>,
}

/// A prefix to keep as long as the daemon lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub name: String,
    pub prompt: TokenPrompt,
}

/// What can be seen from outside; published after each step that changed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub pins: Vec<PinStatus>,
    pub cells: Cells,
    pub n_running: usize,
    pub n_waiting: usize,
    /// Measured prefill speed in tokens per second, 0 until something was computed.
    pub prefill_tokens_per_second: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinStatus {
    pub name: String,
    pub n_tokens: usize,
    pub n_done: usize,
    pub is_warm: bool,
    /// Requests that stood on it, and tokens they did not compute.
    pub n_hits: u64,
    pub n_reused: u64,
}

/// Cells by state. `free + evictable + pinned + held = total`, `reserved ≤ free + evictable`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cells {
    pub total: usize,
    pub free: usize,
    pub evictable: usize,
    pub pinned: usize,
    pub held: usize,
    pub reserved: usize,
}

/// Why a request was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum SubmitError {
    /// The queue is full; when to try again is predicted from the measured prefill speed.
    Busy { retry_after: Duration },
    /// The scheduler has ended or is about to.
    Stopped,
}

pub(crate) enum Command {
    Submit(Box<Submission>),
    Stop,
}

/// The scheduler's door. Cheap to clone.
#[derive(Clone)]
pub struct SchedulerHandle {
    inbox: mpsc::SyncSender<Command>,
    status: watch::Receiver<Status>,
    /// Requests sent and not yet admitted; the queue's bound is checked against it before sending.
    n_waiting: Arc<AtomicUsize>,
    n_waiting_max: usize,
}
