//! Forgetting: what clients left in cells, RAM and files goes, and their pins with it. What is the house's stays.

use tracing::info;

use super::PinError;
use super::step::Scheduler;
use crate::engine::Engine;
use crate::request::Owner;

/// What went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Forgotten {
    pub n_cells: usize,
    /// Saved below the cells.
    pub n_segments: usize,
    pub n_pins: usize,
}

impl<E: Engine> Scheduler<E> {
    /// Forgets what is `whose` client's; `None`: all clients'. Answers in progress go on; what they leave is never saved and
    /// the first to be evicted.
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
        let running = self.running.iter_mut().map(|running| &mut running.sequence);
        for sequence in running.chain(&mut self.parked).chain(&mut self.waiting) {
            sequence.is_background |= is_meant(sequence.owner);
        }
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
}
