//! Restoring: a saved prefix comes back into the cells, one piece a step, before the rest of its prompt is computed.
//!
//! A *restoring* sequence stands in the cells like any other and computes nothing yet; what is back is found by others at once,
//! so that followers need not know how their leader comes by its cells.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::sequence::{Running, Work};
use super::step::Scheduler;
use crate::engine::Engine;
use crate::kv::tiers::GoneCause;
use crate::kv::{Header, Restorable, Restored, Segment, SegmentKey};
use crate::request::{MissCause, Owner};
use crate::telemetry::{Record, RestoreRecord};

/// A disk that has not answered by then is not waited for: computing goes on meanwhile.
const READ_WAIT: Duration = Duration::from_secs(30);

/// A sequence that is being restored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Restoring {
    begun: Instant,
    /// What was in the cells: of a piece that begins before, only the rest came back.
    n_cells: usize,
    n_tokens: usize,
    n_bytes: u64,
    /// The segment it waits for.
    awaits: Option<SegmentKey>,
    has_failed: bool,
}

impl Restoring {
    pub(super) fn new(now: Instant, n_cells: usize) -> Restoring {
        Restoring { begun: now, n_cells, n_tokens: 0, n_bytes: 0, awaits: None, has_failed: false }
    }
}

/// What comes from disk: one segment at a time.
#[derive(Default)]
pub(super) struct Reads {
    asked: Option<(SegmentKey, Instant)>,
    arrived: Option<Segment>,
}

impl Reads {
    /// Gives up what came of owners that are meant.
    pub(super) fn forget(&mut self, is_meant: impl Fn(Owner) -> bool) {
        self.arrived.take_if(|segment| is_meant(segment.header.holder.owner));
    }
}

impl<E: Engine> Scheduler<E> {
    /// It could be restored, and computing is faster: that is told once, and believed a little less next time.
    pub(super) fn tell_slower(&mut self, restorable: Restorable) {
        self.cache.speeds().doubt(restorable.n_disk_bytes);
        self.record_restore("slower", restorable.n_tokens, 0, Duration::ZERO);
    }

    /// Copies one piece back, of the highest class; the number of its tokens. It goes before chunks of any class: a piece takes a
    /// small part of the time that computing its tokens would.
    pub(super) fn restore_some(&mut self) -> usize {
        let mut wanted = None;
        for key in self.restoring() {
            let of_key = |running: &Running<_>| running.sequence.key == key;
            let Some(index) = self.running.iter().position(of_key) else { continue };
            let begun = Instant::now();
            let Running { sequence, standing } = &mut self.running[index];
            let tokens = sequence.reusable();
            match self.cache.restore_piece(&mut self.engine, standing, tokens, self.reads.arrived.as_ref()) {
                Restored::Piece { n_tokens, n_bytes, was_read } => {
                    self.cache.speeds().ram.measure(n_bytes, begun.elapsed());
                    let restoring = sequence.restoring.as_mut().expect("only restoring ones are looked at");
                    let n_past = standing.n_past();
                    let n_back = n_past.saturating_sub(restoring.n_cells.max(n_past - n_tokens));
                    *(if was_read { &mut sequence.n_from_disk } else { &mut sequence.n_from_ram }) += n_back;
                    restoring.n_tokens += n_back;
                    restoring.n_bytes += n_bytes;
                    restoring.awaits = None;
                    if let Work::Warm(pin) = sequence.work {
                        self.pins.set_progress(pin, standing.n_past());
                    }
                    self.savings.is_busy = true;
                    return n_tokens;
                }
                Restored::OnDisk(key) => {
                    sequence.restoring.as_mut().expect("only restoring ones are looked at").awaits = Some(key);
                    wanted = wanted.or(Some(key));
                }
                Restored::Failed => {
                    sequence.restoring.as_mut().expect("only restoring ones are looked at").has_failed = true;
                    self.end_restoring(index);
                }
                Restored::Done => self.end_restoring(index),
            }
        }
        match wanted {
            Some(key) => self.read(key),
            None => self.reads.arrived = None,
        }
        0
    }

    /// The keys of those that are being restored, the highest class first.
    fn restoring(&self) -> Vec<u64> {
        let running = self.running.iter().zip(self.priorities());
        let mut restoring: Vec<_> = running.filter(|(running, _)| running.sequence.restoring.is_some()).collect();
        restoring.sort_by_key(|(_, priority)| Reverse(*priority));
        restoring.into_iter().map(|(running, _)| running.sequence.key).collect()
    }

    /// Has a segment read, if nothing else is.
    fn read(&mut self, key: SegmentKey) {
        match self.reads.asked {
            Some((asked, at)) if at.elapsed() > READ_WAIT => {
                warn!(segment = ?asked, "the disk does not answer: what it holds is computed");
                self.reads.asked = None;
                self.give_up_on(asked);
                return;
            }
            Some(_) => return,
            None => {}
        }
        self.reads.arrived = None;
        let is_asked = self.savings.disk.as_ref().is_some_and(|disk| disk.read(key).is_ok());
        if is_asked {
            self.reads.asked = Some((key, Instant::now()));
        } else {
            self.give_up_on(key);
        }
    }

    /// Those who wait for a segment compute it.
    fn give_up_on(&mut self, key: SegmentKey) {
        for index in (0..self.running.len()).rev() {
            if let Some(restoring) = &mut self.running[index].sequence.restoring
                && restoring.awaits == Some(key)
            {
                restoring.has_failed = true;
                self.end_restoring(index);
            }
        }
        self.savings.is_busy = true;
    }

    pub(super) fn take_read(&mut self, segment: Segment, time: Duration) {
        let (key, n_bytes) = (segment.header.key, segment.header.n_bytes() as u64);
        let speeds = self.cache.speeds();
        speeds.disk.measure(n_bytes, time);
        let speeds = *speeds;
        if self.reads.asked.take_if(|(asked, _)| *asked == key).is_none() {
            return;
        }
        // A file is what its own header says; it must be what the index says, too.
        let is_same = |known: &Header| known.tokens == segment.header.tokens && known.pieces == segment.header.pieces;
        if !self.cache.tiers().header(key).is_some_and(is_same) {
            return self.take_read_failed(key);
        }
        self.cache.tiers().bring_back(&segment, &speeds);
        self.reads.arrived = Some(segment);
    }

    pub(super) fn take_read_failed(&mut self, key: SegmentKey) {
        self.reads.asked.take_if(|(asked, _)| *asked == key);
        self.cache.tiers().lose(key, GoneCause::Failed);
        self.give_up_on(key);
    }

    /// The sequence at `index` computes what is left.
    fn end_restoring(&mut self, index: usize) {
        let Running { sequence, standing } = &mut self.running[index];
        let restoring = sequence.restoring.take().expect("only a restoring sequence ends to be one");
        let n_past = standing.n_past();
        let is_complete = sequence.is_warming() && n_past == sequence.tokens.len();
        debug!(key = sequence.key, n_past, n_tokens = restoring.n_tokens, "restored");
        let result = if restoring.has_failed { "failed" } else { "restored" };
        let (n_tokens, n_bytes) = (restoring.n_tokens, restoring.n_bytes);
        self.record_restore(result, n_tokens, n_bytes, restoring.begun.elapsed());
        let cause = match restoring.has_failed {
            true => MissCause::RestoreFailed,
            false => self.miss_cause(&self.running[index].sequence),
        };
        self.tell_admitted(index, cause);
        if let Work::Warm(pin) = self.running[index].sequence.work {
            self.pins.explain(pin, cause);
        }
        if is_complete {
            self.finish(index, crate::request::Finish::Stop, None);
        }
    }

    pub(super) fn record_restore(&self, result: &'static str, n_tokens: usize, n_bytes: u64, time: Duration) {
        (self.record)(Record::Restore(RestoreRecord { result, n_tokens, n_bytes, time }));
    }
}
