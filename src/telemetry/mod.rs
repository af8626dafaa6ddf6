//! Telemetry: what the cache did for the house, in one SQLite file. It knows nothing of prompts, engine or HTTP.
//!
//! A *record* is one thing that happened. One thread owns the connection and writes in batches; senders never wait, a
//! full inbox drops and counts. Prompt text is never stored.

mod documents;
mod plan;
mod queries;
mod schema;
mod store;
mod why;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

pub use documents::{DocumentRow, read_documents};
pub use plan::{GainRecord, MovedRecord, PlanRecord, RegionRecord, SectionRecord};
pub use queries::{Reader, Stats};
pub use store::Store;
pub use why::{Account, RequestRow};

/// Records on their way to the writer. It empties the inbox at once but for the time of a write, so this is room for
/// some seconds of a stuck disk; a full one costs about 1.5 MiB, most of it plans.
const INBOX_MAX: usize = 1_024;

/// The two ends of telemetry: for those who have something to tell, and for `Store::run`.
pub fn inbox() -> (TelemetryHandle, Inbox) {
    let (sender, receiver) = mpsc::sync_channel(INBOX_MAX);
    let n_dropped = Arc::new(AtomicU64::new(0));
    let inbox = Inbox { receiver, n_dropped: Arc::clone(&n_dropped) };
    (TelemetryHandle { inbox: sender, n_dropped }, inbox)
}

/// Telemetry's door. Cheap to clone. Without a writer behind it every record counts as dropped.
#[derive(Clone, Debug)]
pub struct TelemetryHandle {
    inbox: mpsc::SyncSender<Command>,
    n_dropped: Arc<AtomicU64>,
}

impl TelemetryHandle {
    /// Sends `record` off, or drops and counts it; never waits.
    pub fn record(&self, record: Record) {
        if self.inbox.try_send(Command::Record(record)).is_err() {
            self.n_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that were not stored: the inbox was full, or the database could not be written.
    pub fn n_dropped(&self) -> u64 {
        self.n_dropped.load(Ordering::Relaxed)
    }

    /// The rows of requests that are `wanted`, newest first. What is recorded and not stored yet is stored before.
    pub async fn rows(&self, wanted: Wanted) -> Result<Vec<RequestRow>, ReadError> {
        let (reply, rows) = oneshot::channel();
        self.inbox.try_send(Command::Read { wanted, reply }).map_err(|error| match error {
            mpsc::TrySendError::Full(_) => ReadError::Busy,
            mpsc::TrySendError::Disconnected(_) => ReadError::Off,
        })?;
        rows.await.map_err(|_| ReadError::Off)?.map_err(ReadError::Database)
    }

    /// Makes the writer store what was recorded so far and end; then join its thread.
    pub fn stop(&self) {
        // A writer that has gone has nothing left to stop.
        let _ = self.inbox.send(Command::Stop);
    }
}

/// What `TelemetryHandle`s send.
#[derive(Debug)]
pub struct Inbox {
    receiver: mpsc::Receiver<Command>,
    n_dropped: Arc<AtomicU64>,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a box would cost each record an allocation, and the others are rare")]
enum Command {
    Record(Record),
    Read { wanted: Wanted, reply: oneshot::Sender<rusqlite::Result<Vec<RequestRow>>> },
    Stop,
}

/// Which requests to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// So many.
    Newest(usize),
    /// By `x-request-id`.
    Id(String),
}

/// Why a running daemon cannot tell of its requests.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("telemetry is off: the log says why")]
    Off,
    #[error("telemetry has too much to write down")]
    Busy,
    #[error("the telemetry database cannot be read")]
    Database(#[source] rusqlite::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    #[error("telemetry folder {path} cannot be made")]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("telemetry database {path} cannot be used")]
    Database { path: PathBuf, source: rusqlite::Error },
    #[error("no telemetry database at {path}; `hob serve` makes it when it starts")]
    Missing { path: PathBuf },
    #[error("telemetry database {path} has version {found}, this hob knows {known}; use the hob that wrote it")]
    Newer { path: PathBuf, found: usize, known: usize },
    #[error("telemetry database {path} has version {found}, this hob reads {known}; `hob serve` brings it up to date")]
    Older { path: PathBuf, found: usize, known: usize },
    #[error("telemetry database {path} belongs to another program; telemetry.path must name another file")]
    Foreign { path: PathBuf },
}

/// What a request is called in telemetry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// `x-request-id`.
    pub id: String,
    pub client: String,
    pub profile: Option<String>,
    pub dialect: &'static str,
    /// How its prompt was planned.
    pub plan: Option<Arc<PlanRecord>>,
}

/// One thing to remember.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "a box would cost each request an allocation, and the others are rare")]
pub enum Record {
    Request(RequestRecord),
    Eviction(EvictionRecord),
    Restore(RestoreRecord),
    Missed(MissedRecord),
    Cells(CellsRecord),
}

#[derive(Clone, Debug, PartialEq)]
pub struct RequestRecord {
    pub label: Label,
    pub n_prompt: usize,
    /// Tokens that were in the cells already.
    pub n_reused_cells: usize,
    /// Tokens that came back from RAM for it, and from disk.
    pub n_reused_ram: usize,
    pub n_reused_disk: usize,
    /// Prompt tokens computed for it: the rest, or less if it ended before its prompt was done.
    pub n_computed: usize,
    pub n_generated: usize,
    /// Tokens that were guessed and computed ahead of being said, and those of them that were said.
    pub n_drafted: usize,
    pub n_accepted: usize,
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
    /// "cells", "ram" or "disk".
    pub tier: &'static str,
    /// "cells" (room was needed), "ids" (a sequence id was) or "idle" (nobody came back) for cells; "room", "failed" or
    /// "removed" for the tiers below.
    pub cause: &'static str,
    pub n_tokens: usize,
    /// 0 for cells: what they take is the same all the time.
    pub n_bytes: u64,
}

/// A saved prefix that was to come back into the cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreRecord {
    /// "restored", "failed" (what came before the failure counts) or "slower" (it was computed instead).
    pub result: &'static str,
    pub n_tokens: usize,
    pub n_bytes: u64,
    pub time: Duration,
}

/// Tokens that a request computed though they were held once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissedRecord {
    pub n_tokens: usize,
    /// With so much more RAM they would still have been held.
    pub n_more_bytes: u64,
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
