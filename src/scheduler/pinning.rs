//! Pins that come and go while the daemon runs: asked for by a client, and taken away again.

use tracing::info;

use super::pins;
use super::sequence::Work;
use super::step::Scheduler;
use super::{Pin, PinError, PinStatus};
use crate::engine::Engine;
use crate::kv::{Kept, Tier};
use crate::request::Owner;

impl<E: Engine> Scheduler<E> {
    /// Takes `pin` in; one of the same owner with its name gives way to it.
    pub(super) fn pin(&mut self, pin: Pin) -> Result<(), PinError> {
        pins::joined(&self.pins.all(), pin.clone(), self.parallel, &self.engine.limits())?;
        match self.pins.find(&pin.name).map(|(index, old)| (index, *old == pin)) {
            Some((_, true)) => return Ok(()),
            Some((index, false)) => {
                self.free_pin(index);
                if let Some(pinned) = self.pins.replace(index, pin) {
                    self.cache.unpin(pinned);
                }
                self.settle_pins();
            }
            None => self.pins.push(pin),
        }
        Ok(())
    }

    /// Takes the pin called `name` away, if it is of `owner`'s client; `None`: whosever it is. `false`: there is none.
    pub(super) fn unpin(&mut self, name: &str, owner: Option<Owner>) -> Result<bool, PinError> {
        let Some((index, pin)) = self.pins.find(name) else { return Ok(false) };
        if pin.is_configured {
            return Err(PinError::Configured { name: name.to_owned() });
        }
        if owner.is_some_and(|owner| !owner.is_client_of(pin.owner)) {
            return Err(PinError::Anothers { name: name.to_owned() });
        }
        self.remove_pin(index);
        info!(pin = name, "removed");
        Ok(true)
    }

    pub(super) fn remove_pin(&mut self, index: usize) {
        self.free_pin(index);
        if let Some(pinned) = self.pins.remove(index) {
            self.cache.unpin(pinned);
        }
        for running in &mut self.running {
            if let Work::Warm(other) = &mut running.sequence.work
                && *other > index
            {
                *other -= 1;
            }
        }
        self.settle_pins();
    }

    /// One that is being computed is computed no further.
    pub(super) fn free_pin(&mut self, index: usize) {
        let warms = |work: &Work<_>| matches!(work, Work::Warm(pin) if *pin == index);
        if let Some(running_idx) = self.running.iter().position(|running| warms(&running.sequence.work)) {
            self.park(running_idx);
        }
    }

    /// Below the cells goes what no pin needs any more; what went with it and another pin does need is saved again.
    pub(super) fn settle_pins(&mut self) {
        self.cache.tiers().keep_pins(&self.pins.prefixes());
        for (index, pin) in self.pins.all().into_iter().enumerate() {
            if self.pins.is_warm(index) {
                self.save_pin(&pin);
            }
        }
    }

    pub(super) fn save_pin(&mut self, pin: &Pin) {
        if !self.cache.is_shared() || !self.cache.saves() {
            return;
        }
        self.save_later(pin.holder(), &pin.prompt.tokens, &pin.prompt.cuts, Kept::Pin);
        // Its client's own requests may have saved it before.
        if pin.owner != Owner::Public {
            self.keep_when_saved(pin.holder(), &pin.prompt.tokens, Kept::Pin);
        }
    }

    pub(super) fn pin_statuses(&mut self) -> Vec<PinStatus> {
        let Scheduler { pins, cache, .. } = self;
        let tiers = &*cache.tiers();
        pins.statuses(|holder, tokens| tiers.tier_of(holder, tokens).map_or("none", Tier::name))
    }
}
