//! Snapshots: K/V that outlives its cells and the daemon, as files.
//!
//! One thread owns the folder: it reads, verifies, writes, syncs and removes, so that nobody who computes ever waits for a disk.
//! `container` is a segment as bytes, `folder` the files, `identity` what K/V depends on, `weights` which model a file holds,
//! `secret` whose files they are. Which segments are worth a file is not decided here.

pub mod container;
pub mod folder;
pub mod identity;
mod secret;
#[cfg(test)]
mod tests;
mod weights;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

pub use container::Secret;
pub use folder::{Because, Dropped, Folder, Found, Place, Swept};
pub use identity::{Identity, Mismatch};
pub use weights::{hash_weights, remembered_weights};

use crate::kv::{Segment, SegmentKey};
use crate::request::Owner;

/// Jobs that may wait. A write holds its segment's bytes until it is done, so whoever sends counts them; more than this means
/// that the disk does not keep up.
const N_JOBS_MAX: usize = 256;

/// Old files are looked for this often; `keep` is counted in days.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);

enum Job {
    Write(Segment),
    Read(SegmentKey),
    Remove(SegmentKey),
    Touch(SegmentKey),
    Forget(Option<Owner>),
    Stop,
}

/// What the thread tells, in the order of the jobs.
#[derive(Debug)]
pub enum Report {
    /// At the start, before any job, and again whenever a file became too old.
    Swept(Swept),
    Written {
        key: SegmentKey,
        n_file_bytes: u64,
        time: Duration,
    },
    WriteFailed {
        key: SegmentKey,
        reason: String,
    },
    Read {
        segment: Segment,
        time: Duration,
    },
    /// The file is gone, or it was wrong and is gone now.
    ReadFailed {
        key: SegmentKey,
        reason: String,
    },
    Forgotten(Vec<SegmentKey>),
}

/// Where reports go; must not block for long, since files wait meanwhile.
pub type Reporter = Box<dyn Fn(Report) + Send>;

/// The thread has more to do than it keeps up with, or has ended; nothing was asked of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the disk does not keep up: {N_JOBS_MAX} jobs wait")]
pub struct Busy;

/// The snapshots thread's door. Cheap to clone. Nothing here waits but `stop`.
#[derive(Clone, Debug)]
pub struct SnapshotsHandle {
    inbox: mpsc::SyncSender<Job>,
    is_stopping: Arc<AtomicBool>,
}

/// What the thread receives from.
pub struct Inbox {
    jobs: mpsc::Receiver<Job>,
    is_stopping: Arc<AtomicBool>,
}

impl Inbox {
    /// Whether the end was asked for, behind whatever waits.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Relaxed)
    }
}

impl SnapshotsHandle {
    /// A door and the inbox behind it, for `Snapshots::run`.
    pub fn new() -> (SnapshotsHandle, Inbox) {
        let (inbox, jobs) = mpsc::sync_channel(N_JOBS_MAX);
        let is_stopping = Arc::new(AtomicBool::new(false));
        (SnapshotsHandle { inbox, is_stopping: is_stopping.clone() }, Inbox { jobs, is_stopping })
    }

    /// Writes a file; `Written` or `WriteFailed` follows.
    pub fn write(&self, segment: Segment) -> Result<(), Busy> {
        self.ask(Job::Write(segment))
    }

    /// Reads and verifies a file; `Read` or `ReadFailed` follows.
    pub fn read(&self, key: SegmentKey) -> Result<(), Busy> {
        self.ask(Job::Read(key))
    }

    /// Removes a file; nothing follows.
    pub fn remove(&self, key: SegmentKey) -> Result<(), Busy> {
        self.ask(Job::Remove(key))
    }

    /// Notes that a file was used now. Forgotten if the thread is busy: it may then be called old a little early.
    pub fn touch(&self, key: SegmentKey) {
        let _ = self.ask(Job::Touch(key));
    }

    /// Removes all files of `owner`'s client, or of all clients; `Forgotten` follows.
    pub fn forget(&self, owner: Option<Owner>) -> Result<(), Busy> {
        self.ask(Job::Forget(owner))
    }

    /// Does what was asked before, then ends the thread; join it afterwards.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // A thread that has gone has nothing left to stop.
        let _ = self.inbox.send(Job::Stop);
    }

    fn ask(&self, job: Job) -> Result<(), Busy> {
        self.inbox.try_send(job).map_err(|_| Busy)
    }
}

/// The thread's state.
pub struct Snapshots {
    folder: Folder,
    /// What is neither a pin nor used for this long is removed.
    keep: Duration,
    report: Reporter,
    /// A full disk is told of once, not with each file.
    is_failing: bool,
}

impl Snapshots {
    pub fn new(folder: Folder, keep: Duration, report: Reporter) -> Snapshots {
        Snapshots { folder, keep, report, is_failing: false }
    }

    /// Sweeps the folder, then works until told to stop or until the last handle is gone. The body of the thread.
    pub fn run(mut self, inbox: Inbox) {
        self.sweep(true);
        let mut swept = Instant::now();
        loop {
            match inbox.jobs.recv_timeout(SWEEP_EVERY.saturating_sub(swept.elapsed())) {
                Ok(Job::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(job) => self.work(job),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if swept.elapsed() >= SWEEP_EVERY {
                self.sweep(false);
                swept = Instant::now();
            }
        }
    }

    /// The body of the thread where it ends before it is known what the files were written under: what is to be forgotten goes
    /// all the same.
    pub fn end(mut self, inbox: &Inbox) {
        for job in inbox.jobs.try_iter().filter(|job| matches!(job, Job::Forget(_))) {
            self.work(job);
        }
    }

    /// `is_start`: all that is there is told of; later only what went.
    fn sweep(&self, is_start: bool) {
        let mut swept = self.folder.sweep(SystemTime::now(), self.keep).unwrap_or_else(|error| {
            tracing::warn!(%error, folder = %self.folder.path().display(), "the K/V folder cannot be read");
            Swept::default()
        });
        for dropped in &swept.dropped {
            tracing::info!(file = dropped.file, reason = dropped.reason, "a K/V file was removed");
        }
        if !is_start {
            swept.found.clear();
        }
        if is_start || !swept.dropped.is_empty() {
            (self.report)(Report::Swept(swept));
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Write(segment) => self.write(&segment),
            Job::Read(key) => self.read(key),
            Job::Remove(key) => {
                if let Err(error) = self.folder.remove(key) {
                    tracing::warn!(%error, ?key, "a K/V file cannot be removed");
                }
            }
            Job::Touch(key) => {
                if let Err(error) = self.folder.touch(key, SystemTime::now()) {
                    tracing::debug!(%error, ?key, "a K/V file cannot be dated");
                }
            }
            Job::Forget(owner) => {
                let gone = self.folder.forget(owner).unwrap_or_else(|error| {
                    tracing::error!(%error, "stored K/V cannot be forgotten");
                    Vec::new()
                });
                (self.report)(Report::Forgotten(gone));
            }
            Job::Stop => unreachable!("the loop ends with it"),
        }
    }

    fn write(&mut self, segment: &Segment) {
        let key = segment.header.key;
        let begun = Instant::now();
        let written = self.folder.write(segment, &mut |_| ()).or_else(|error| {
            // Somebody may have removed the folder while we run.
            self.folder.make().map_err(|_| error)?;
            self.folder.write(segment, &mut |_| ())
        });
        match written {
            Ok(n_file_bytes) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::info!("K/V files can be written again");
                }
                (self.report)(Report::Written { key, n_file_bytes, time: begun.elapsed() });
            }
            Err(error) => {
                let folder = self.folder.path().display();
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, %folder, "K/V cannot be written: a restart will compute it again");
                }
                (self.report)(Report::WriteFailed { key, reason: error.to_string() });
            }
        }
    }

    fn read(&self, key: SegmentKey) {
        let begun = Instant::now();
        let reason = match self.folder.read(key) {
            Ok(Some(segment)) => return (self.report)(Report::Read { segment, time: begun.elapsed() }),
            Ok(None) => "the file is gone".to_owned(),
            Err(fault) => fault.to_string(),
        };
        tracing::warn!(?key, reason, "a K/V file is of no use and was removed");
        (self.report)(Report::ReadFailed { key, reason });
    }
}
