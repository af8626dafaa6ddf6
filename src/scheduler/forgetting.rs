//! Forgetting: what clients left in cells, RAM and files goes, with their pins and the answers that they are being given. What is
//! the house's stays.

use tracing::info;

use super::PinError;
use super::step::Scheduler;
use crate::engine::Engine;
use crate::request::{Finish, Owner};

/// What went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forgotten {
    pub n_cells: usize,
    /// Saved below the cells.
    pub n_segments: usize,
    pub n_pins: usize,
    /// They were running or waiting and have ended.
    pub n_answers: usize,
}

/// What such an answer's client is told.
const FORGOTTEN: &str = "what this client left was forgotten while it was being answered";

impl<E: Engine> Scheduler<E> {
    /// Forgets what is `whose` client's; `None`: all clients'.
    pub(super) fn forget(&mut self, whose: Option<Owner>) -> Result<Forgotten, PinError> {
        let is_meant = |owner: Owner| owner != Owner::Public && whose.is_none_or(|whose| owner.is_client_of(whose));
        let mut forgotten = Forgotten::default();
        for (index, pin) in self.pins.all().iter().enumerate().rev() {
            if !pin.is_configured && is_meant(pin.owner) {
                self.remove_pin(index);
                forgotten.n_pins += 1;
            }
        }
        self.learned.forget(is_meant);
        for saving in self.savings.forget(is_meant) {
            self.cache.drop_saving(saving);
        }
        forgotten.n_answers = self.end_answers(is_meant);
        self.reads.forget(is_meant);
        let n_before = self.cache.tiers().held().n_segments;
        self.cache.tiers().forget(is_meant);
        forgotten.n_segments = n_before - self.cache.tiers().held().n_segments;
        forgotten.n_cells = self.cache.forget(&mut self.engine, is_meant);
        self.tell_gone();
        // Whoever is told that it is gone must not see it any more.
        self.publish_status();
        info!(?forgotten, "forgotten");
        // Files that nobody here knows of go, too.
        match &self.savings.disk {
            Some(disk) if disk.forget(whose).is_err() => Err(PinError::Busy),
            _ => Ok(forgotten),
        }
    }

    /// Ends the answers of owners that are meant, running or not; their number.
    fn end_answers(&mut self, is_meant: impl Fn(Owner) -> bool) -> usize {
        let mut n_ended = 0;
        for index in (0..self.running.len()).rev() {
            let sequence = &self.running[index].sequence;
            if !sequence.is_warming() && is_meant(sequence.holder.owner) {
                self.finish(index, Finish::Error, Some(FORGOTTEN.to_owned()));
                n_ended += 1;
            }
        }
        for sequence in self.take_waiting(|sequence| is_meant(sequence.holder.owner)) {
            self.end(sequence, Finish::Error, Some(FORGOTTEN.to_owned()));
            n_ended += 1;
        }
        n_ended
    }
}
