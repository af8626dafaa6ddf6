//! Saving: what answers and pins leave in the cells is copied below them, beside the steps, and written to disk where it has
//! to outlive the daemon.
//!
//! One piece a step, and none in a step that computes a prompt. One segment is being written at a time: what is on its way to
//! disk lies in RAM beside the budget.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use tracing::{debug, info, warn};

use super::Command;
use super::disk::Disk;
use super::step::Scheduler;
use crate::engine::Engine;
use crate::kv::tiers::GoneCause;
use crate::kv::{Holder, Kept, Saved, Saving, SegmentKey, Tier};
use crate::request::{MissCause, Owner, Token};
use crate::snapshots::identity::{ADAPTER, KV_TYPE, MODEL};
use crate::snapshots::{Because, Report};
use crate::telemetry::{EvictionRecord, Record};

/// Prefixes that may wait to be saved: each holds its tokens. More come only when steps leave no time, and then those that are
/// evicted are saved all the same.
const N_QUEUED_MAX: usize = 64;

/// How long the end of the daemon may be put off to write what is worth it. A service manager waits longer.
const END_WAIT: Duration = Duration::from_secs(5);

/// What is on its way out of the cells, and further to disk.
#[derive(Default)]
pub(super) struct Savings {
    pub(super) disk: Option<Box<dyn Disk>>,
    queue: VecDeque<Saving>,
    /// Prefixes to keep as learned or pinned as soon as they are saved.
    to_keep: VecDeque<(Holder, Vec<Token>, Kept)>,
    to_write: VecDeque<SegmentKey>,
    to_remove: VecDeque<SegmentKey>,
    /// Named by damaged files that did not tell what they held; known again when that is saved again.
    damaged: BTreeSet<SegmentKey>,
    writing: Option<SegmentKey>,
    /// Until then admission waits for the first report.
    sweep_until: Option<Instant>,
    /// The first report has come.
    is_swept: bool,
    /// The last look brought something about, so the next one may, too.
    pub(super) is_busy: bool,
}

impl Savings {
    pub(super) fn new(disk: Option<Box<dyn Disk>>, wait: Duration) -> Savings {
        let sweep_until = disk.as_ref().map(|_| Instant::now() + wait);
        Savings { disk, sweep_until, ..Savings::default() }
    }

    /// Gives up what waits to be saved of owners that are meant; the caller drops it.
    pub(super) fn forget(&mut self, is_meant: impl Fn(Owner) -> bool) -> Vec<Saving> {
        self.to_keep.retain(|(holder, ..)| !is_meant(holder.owner));
        let is_kept = |saving: &Saving| !is_meant(saving.holder().owner);
        let (kept, dropped) = std::mem::take(&mut self.queue).into_iter().partition::<Vec<_>, _>(is_kept);
        self.queue = kept.into();
        dropped
    }

    /// How long admission waits for what lies on disk; `None`: it does not.
    pub(super) fn sweep_wait(&mut self) -> Option<Duration> {
        let left = self.sweep_until?.saturating_duration_since(Instant::now());
        if left.is_zero() {
            info!("what lies on disk is not known yet: it is computed meanwhile");
            self.sweep_until = None;
            return None;
        }
        Some(left)
    }
}

impl<E: Engine> Scheduler<E> {
    /// Saves what was just computed, in the background.
    pub(super) fn save_later(&mut self, holder: Holder, tokens: &[Token], cuts: &[usize], kept: Kept) {
        if !self.cache.saves() || tokens.is_empty() {
            return;
        }
        let savings = &mut self.savings;
        if savings.queue.len() >= N_QUEUED_MAX && kept == Kept::Private {
            return;
        }
        savings.queue.push_back(Saving::new(holder, tokens.to_vec(), cuts.to_vec(), kept));
        savings.is_busy = true;
    }

    /// A request of `holder` was answered: what it begins with may be worth keeping for longer.
    pub(super) fn learn(&mut self, holder: Holder, tokens: &[Token], cuts: &[usize]) {
        if self.cache.tiers().budgets().learned == 0 {
            return;
        }
        let Some(cut) = self.learned.see(holder, tokens, cuts) else { return };
        let prefix = &tokens[..cut];
        if self.cache.find(holder.house(), prefix) == cut || self.cache.tiers().is_learned(holder, prefix) {
            return;
        }
        self.save_later(holder, prefix, cuts, Kept::Learned);
        self.keep_when_saved(holder, prefix, Kept::Learned);
    }

    /// Whatever saved it, it is to be `kept`.
    pub(super) fn keep_when_saved(&mut self, holder: Holder, prefix: &[Token], kept: Kept) {
        self.savings.to_keep.push_back((holder, prefix.to_vec(), kept));
    }

    /// Copies one piece of what waits to be saved.
    pub(super) fn save_some(&mut self) {
        let Some(saving) = self.savings.queue.front_mut() else { return };
        match self.cache.save_piece(&mut self.engine, saving) {
            Saved::Piece => self.savings.is_busy = true,
            Saved::Segment { key, is_passing } => {
                if self.savings.damaged.remove(&key) {
                    self.pins.explain_damaged(saving.holder(), saving.tokens());
                }
                if is_passing {
                    self.savings.to_write.push_back(key);
                }
                self.savings.is_busy = true;
            }
            Saved::Waits => {}
            Saved::Done => {
                self.savings.queue.pop_front();
                self.savings.is_busy = true;
                if self.savings.queue.is_empty() {
                    self.keep_saved();
                }
            }
        }
    }

    fn keep_saved(&mut self) {
        while let Some((holder, prefix, kept)) = self.savings.to_keep.pop_front() {
            let keys = match kept {
                Kept::Pin => self.cache.tiers().keep_as_pin(holder, &prefix),
                Kept::Learned | Kept::Private => self.cache.tiers().learn(holder, &prefix),
            };
            if !keys.is_empty() {
                info!(n_tokens = prefix.len(), kept = ?kept, "a prefix is kept");
            }
            self.savings.to_write.extend(keys);
        }
    }

    /// Files that must be written or removed.
    pub(super) fn write_some(&mut self) {
        self.tell_gone();
        let Some(disk) = &self.savings.disk else { return };
        while let Some(&key) = self.savings.to_remove.front() {
            if disk.remove(key).is_err() {
                break;
            }
            self.savings.to_remove.pop_front();
        }
        self.savings.to_write.extend(self.cache.take_to_write());
        if self.savings.writing.is_some() {
            return;
        }
        if self.savings.to_write.is_empty() && self.cache.tiers().take_changed() {
            let speeds = *self.cache.speeds();
            self.savings.to_write.extend(self.cache.tiers().next_to_write(&speeds, false));
        }
        while let Some(key) = self.savings.to_write.pop_front() {
            if self.write(key) {
                break;
            }
        }
    }

    /// Whether the segment is being written now.
    fn write(&mut self, key: SegmentKey) -> bool {
        let Some(segment) = self.cache.tiers().begin_write(key) else {
            self.cache.tiers().drop_passing(key);
            return false;
        };
        let Some(disk) = &self.savings.disk else { return false };
        if disk.write(segment).is_err() {
            self.cache.tiers().write_failed(key);
            return false;
        }
        self.savings.writing = Some(key);
        true
    }

    /// What the disk tells.
    pub(super) fn take_report(&mut self, report: Report) {
        self.savings.is_busy = true;
        match report {
            Report::Swept(swept) => {
                self.savings.sweep_until = None;
                let is_first = !std::mem::replace(&mut self.savings.is_swept, true);
                let found: Vec<_> = swept.found.into_iter().map(|found| (found.header, found.n_file_bytes)).collect();
                if is_first {
                    let n_files = found.len();
                    self.cache.tiers().take_found(found);
                    self.cache.tiers().keep_pins(&self.pins.prefixes());
                    let (held, budget) = (self.cache.tiers().held().disk, self.cache.tiers().budgets().disk);
                    info!(n_files, n_bytes = held, "K/V on disk");
                    if held > budget {
                        warn!(
                            n_bytes = held,
                            budget, "profiles hold more of the disk than cache.disk: their files stay"
                        );
                    }
                }
                for dropped in swept.dropped {
                    let key = || SegmentKey::from_hex(Path::new(&dropped.file).file_stem()?.to_str()?);
                    let Some(header) = dropped.header else {
                        self.savings.damaged.extend(key());
                        continue;
                    };
                    // What the first report tells of had gone before anything was held.
                    if !is_first {
                        self.cache.tiers().lose(header.key, GoneCause::Removed);
                    }
                    self.cache.refuse(*header, miss_cause(&dropped.because));
                }
            }
            Report::Written { key, n_file_bytes, .. } => {
                self.cache.tiers().written(key, n_file_bytes);
                self.end_writing(key);
            }
            Report::WriteFailed { key, reason } => {
                debug!(?key, reason, "not written");
                self.cache.tiers().write_failed(key);
                self.end_writing(key);
            }
            Report::Read { segment, time } => self.take_read(segment, time),
            Report::ReadFailed { key, .. } => self.take_read_failed(key),
            Report::Forgotten(keys) => {
                for key in keys {
                    self.cache.tiers().lose(key, GoneCause::Removed);
                }
            }
        }
        self.tell_gone();
    }

    fn end_writing(&mut self, key: SegmentKey) {
        if self.savings.writing == Some(key) {
            self.savings.writing = None;
        }
    }

    /// What left the tiers is told to telemetry; its file goes.
    pub(super) fn tell_gone(&mut self) {
        for gone in self.cache.take_gone() {
            if gone.tier == Tier::Disk {
                self.savings.to_remove.push_back(gone.key);
            }
            let (tier, cause) = (gone.tier.name(), gone.cause.name());
            let (n_tokens, n_bytes) = (gone.n_tokens, gone.n_bytes);
            (self.record)(Record::Eviction(EvictionRecord { tier, cause, n_tokens, n_bytes }));
        }
    }

    /// The daemon stops: what is worth it is written, the best first, as long as that takes no longer than a stop may.
    pub(super) fn save_all(&mut self, inbox: &Receiver<Command>) {
        let deadline = Instant::now() + END_WAIT;
        if self.savings.disk.is_none() {
            return;
        }
        let mut n_written = 0;
        while Instant::now() < deadline {
            self.savings.is_busy = false;
            self.save_some();
            let speeds = *self.cache.speeds();
            if self.savings.to_write.is_empty() && self.savings.queue.is_empty() && self.savings.writing.is_none() {
                self.savings.to_write.extend(self.cache.tiers().next_to_write(&speeds, true));
            }
            let was_writing = self.savings.writing.is_some();
            self.write_some();
            n_written += usize::from(!was_writing && self.savings.writing.is_some());
            match &self.savings.writing {
                None if !self.savings.is_busy && self.savings.to_write.is_empty() => break,
                None => {}
                Some(_) => match inbox.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                    Ok(Command::Disk(report)) => {
                        let has_failed = matches!(report, Report::WriteFailed { .. });
                        self.take_report(report);
                        if has_failed {
                            break;
                        }
                    }
                    // Nobody is admitted any more; a dropped submission ends its answer.
                    Ok(
                        Command::Submit(_)
                        | Command::Repin(_)
                        | Command::Pin { .. }
                        | Command::Unpin { .. }
                        | Command::Forget { .. }
                        | Command::Stop,
                    ) => {}
                    Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
                },
            }
        }
        debug!(n_written, "saved at the end");
    }
}

/// What a miss on a file is called that was dropped.
fn miss_cause(because: &Because) -> MissCause {
    match because {
        Because::Old => MissCause::Evicted,
        Because::Damaged => MissCause::RestoreFailed,
        Because::Changed(fact) => match fact.as_str() {
            MODEL => MissCause::Model,
            KV_TYPE => MissCause::KvType,
            ADAPTER => MissCause::Adapter,
            _ => MissCause::Settings,
        },
    }
}
