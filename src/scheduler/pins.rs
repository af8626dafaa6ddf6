//! The pins' state: a pin is cold, warming or warm.
//!
//! A *pin* is a prefix that the house keeps. It is computed in the background of traffic; it gives its cells up only when a
//! request cannot be admitted otherwise, and is warmed again when there is nothing else to do.

use std::time::Instant;

use super::{Pin, PinError, PinStatus};
use crate::engine::{Limits, Memory};
use crate::kv::{Holder, Pinned, PinsTooLarge, check_pins};
use crate::request::{MissCause, Owner, Token};

/// A pin that failed to warm this often is left alone: the step fails for a reason that trying again does not mend.
const TRIES: u32 = 3;

pub(super) struct Pins {
    pins: Vec<Entry>,
}

struct Entry {
    pin: Pin,
    state: State,
    n_failures: u32,
    n_hits: u64,
    n_reused: u64,
    since: Instant,
    /// What was wrong with the file that it should have come from.
    file_fault: Option<MissCause>,
}

impl Entry {
    fn new(pin: Pin) -> Entry {
        let since = Instant::now();
        Entry { pin, state: State::Cold, n_failures: 0, n_hits: 0, n_reused: 0, since, file_fault: None }
    }
}

enum State {
    Cold,
    Warming { n_done: usize },
    Warm(Pinned),
}

impl Pins {
    pub(super) fn new(pins: Vec<Pin>) -> Pins {
        Pins { pins: pins.into_iter().map(Entry::new).collect() }
    }

    /// The next pin to warm; `None` while another one is.
    pub(super) fn next(&self) -> Option<usize> {
        let is_warming = self.pins.iter().any(|entry| matches!(entry.state, State::Warming { .. }));
        if is_warming { None } else { self.next_cold() }
    }

    /// The longest cold pin that `tokens` of `holder` begin with: computed for the house first, it serves this request, too.
    pub(super) fn cold_prefix_of(&self, holder: Holder, tokens: &[Token]) -> Option<usize> {
        let is_cold = |entry: &Entry| matches!(entry.state, State::Cold) && entry.n_failures < TRIES;
        let cold = self.pins.iter().enumerate().filter(|(_, entry)| is_cold(entry));
        let prefixes = cold.filter(|(_, entry)| {
            let pin = &entry.pin.prompt.tokens;
            holder.may_see(entry.pin.holder()) && pin.len() < tokens.len() && tokens.starts_with(pin)
        });
        prefixes.max_by_key(|(_, entry)| entry.pin.prompt.tokens.len()).map(|(index, _)| index)
    }

    /// The holders and tokens of all pins.
    pub(super) fn prefixes(&self) -> Vec<(Holder, &[Token])> {
        self.pins.iter().map(|entry| (entry.pin.holder(), entry.pin.prompt.tokens.as_slice())).collect()
    }

    pub(super) fn all(&self) -> Vec<Pin> {
        self.pins.iter().map(|entry| entry.pin.clone()).collect()
    }

    pub(super) fn find(&self, name: &str) -> Option<(usize, &Pin)> {
        self.pins.iter().map(|entry| &entry.pin).enumerate().find(|(_, pin)| pin.name == name)
    }

    pub(super) fn push(&mut self, pin: Pin) {
        self.pins.push(Entry::new(pin));
    }

    /// Takes the cold or warm pin at `index` out, and those behind it move up; gives what it holds, for the caller to unpin.
    pub(super) fn remove(&mut self, index: usize) -> Option<Pinned> {
        match self.pins.remove(index).state {
            State::Warm(pinned) => Some(pinned),
            State::Cold | State::Warming { .. } => None,
        }
    }

    pub(super) fn is_warm(&self, index: usize) -> bool {
        matches!(self.pins[index].state, State::Warm(_))
    }

    /// Marks a cold pin as warming and gives it.
    pub(super) fn start(&mut self, index: usize) -> &Pin {
        self.pins[index].state = State::Warming { n_done: 0 };
        &self.pins[index].pin
    }

    /// Whether a pin waits to be warmed.
    pub(super) fn is_any_cold(&self) -> bool {
        self.next_cold().is_some()
    }

    fn next_cold(&self) -> Option<usize> {
        self.pins.iter().position(|entry| matches!(entry.state, State::Cold) && entry.n_failures < TRIES)
    }

    pub(super) fn set_progress(&mut self, index: usize, n: usize) {
        if let State::Warming { n_done } = &mut self.pins[index].state {
            *n_done = n;
        }
    }

    pub(super) fn set_warm(&mut self, index: usize, pinned: Pinned) -> &Pin {
        self.pins[index].state = State::Warm(pinned);
        &self.pins[index].pin
    }

    /// Warming was interrupted; it begins again later, from what is still held.
    pub(super) fn set_cold(&mut self, index: usize) {
        self.pins[index].state = State::Cold;
    }

    /// The pin at `index` has to be computed; remembered if a file is to blame.
    pub(super) fn explain(&mut self, index: usize, cause: MissCause) {
        if matches!(
            cause,
            MissCause::RestoreFailed | MissCause::Model | MissCause::KvType | MissCause::Settings | MissCause::Adapter
        ) {
            self.pins[index].file_fault = Some(cause);
        }
    }

    /// A damaged file that could not tell what it held was the one of the pin that these are the tokens of.
    pub(super) fn explain_damaged(&mut self, holder: Holder, tokens: &[Token]) {
        let is_meant = |entry: &Entry| entry.pin.holder() == holder && entry.pin.prompt.tokens == tokens;
        if let Some(index) = self.pins.iter().position(is_meant) {
            self.explain(index, MissCause::RestoreFailed);
        }
    }

    pub(super) fn set_failed(&mut self, index: usize) {
        self.pins[index].n_failures += 1;
        self.pins[index].state = State::Cold;
    }

    /// Gives all warm pins up; the caller unpins them.
    pub(super) fn give_up(&mut self) -> Vec<Pinned> {
        let warm = self.pins.iter_mut().filter(|entry| matches!(entry.state, State::Warm(_)));
        let given = warm.map(|entry| match std::mem::replace(&mut entry.state, State::Cold) {
            State::Warm(pinned) => pinned,
            State::Cold | State::Warming { .. } => unreachable!("only warm pins were taken"),
        });
        given.collect()
    }

    /// All pins as they would be with `pins` in place of those with the same names.
    pub(super) fn with(&self, pins: &[Pin]) -> Vec<Pin> {
        let named = |entry: &Entry| pins.iter().find(|pin| pin.name == entry.pin.name).unwrap_or(&entry.pin).clone();
        self.pins.iter().map(named).collect()
    }

    /// Puts `pin` in the place of the cold or warm pin at `index`; gives what the old one holds, for the caller to unpin.
    pub(super) fn replace(&mut self, index: usize, pin: Pin) -> Option<Pinned> {
        let old = std::mem::replace(&mut self.pins[index].pin, pin);
        debug_assert_eq!(old.name, self.pins[index].pin.name);
        self.pins[index].n_failures = 0;
        self.pins[index].file_fault = None;
        match std::mem::replace(&mut self.pins[index].state, State::Cold) {
            State::Warm(pinned) => Some(pinned),
            State::Cold | State::Warming { .. } => None,
        }
    }

    /// Indices of the pins that are other ones in `pins`, which are all.
    pub(super) fn differing(&self, pins: &[Pin]) -> Vec<usize> {
        (0..pins.len()).filter(|&index| self.pins[index].pin != pins[index]).collect()
    }

    /// Counts a request whose prompt begins with a pin it did not have to compute.
    pub(super) fn count_hit(&mut self, holder: Holder, tokens: &[Token], n_cached: usize) {
        for entry in &mut self.pins {
            let pin = &entry.pin.prompt.tokens;
            if holder.may_see(entry.pin.holder()) && pin.len() <= n_cached && tokens.starts_with(pin) {
                entry.n_hits += 1;
                entry.n_reused += pin.len() as u64;
            }
        }
    }

    /// `tier` tells where what is not in the cells lies.
    pub(super) fn statuses(&self, tier: impl Fn(Holder, &[Token]) -> &'static str) -> Vec<PinStatus> {
        let status = |entry: &Entry| {
            let n_tokens = entry.pin.prompt.tokens.len();
            let (n_done, is_warm) = match entry.state {
                State::Cold => (0, false),
                State::Warming { n_done } => (n_done, false),
                State::Warm(_) => (n_tokens, true),
            };
            PinStatus {
                name: entry.pin.name.clone(),
                is_configured: entry.pin.is_configured,
                is_public: entry.pin.owner == Owner::Public,
                n_tokens,
                n_done,
                is_warm,
                tier: if is_warm { "cells" } else { tier(entry.pin.holder(), &entry.pin.prompt.tokens) },
                since: entry.since,
                has_failed: !is_warm && entry.n_failures >= TRIES,
                n_hits: entry.n_hits,
                n_reused: entry.n_reused,
                file_fault: entry.file_fault,
            }
        };
        self.pins.iter().map(status).collect()
    }
}

/// Whether all fit into the cells. Only one holder's pins are sure to share what they have in common.
pub(super) fn check(pins: &[Pin], limits: &Limits) -> Result<(), PinsTooLarge> {
    let tokens: Vec<(Holder, &[Token])> = pins.iter().map(|pin| (pin.holder(), pin.prompt.tokens.as_slice())).collect();
    check_pins(&tokens, limits.n_cells, limits.memory == Memory::Rewindable).map(drop)
}

/// `pins` with `pin` behind them or in the place of the one with its name, if they fit into cells and ids together.
pub(super) fn joined(pins: &[Pin], pin: Pin, parallel: usize, limits: &Limits) -> Result<Vec<Pin>, PinError> {
    let mut joined = pins.to_vec();
    match joined.iter_mut().find(|other| other.name == pin.name) {
        Some(other) if other.is_configured => return Err(PinError::Configured { name: pin.name }),
        Some(other) if !other.owner.is_client_of(pin.owner) => return Err(PinError::Anothers { name: pin.name }),
        Some(other) => *other = pin,
        None => joined.push(pin),
    }
    check(&joined, limits)?;
    // An answer may need two ids, and what is being warmed one.
    if joined.len() + 2 * parallel + 1 > limits.n_seq_max {
        return Err(PinError::TooMany { n_pins: pins.len() });
    }
    Ok(joined)
}
