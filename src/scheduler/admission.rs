//! Admission: who runs, on which held prefix, with how many cells promised; who follows whom; who gives way.
//!
//! A *leader* is a running sequence that is about to compute what another one needs next; the other one *follows* it and takes
//! its cells after each step instead of computing them again. A sequence that gives its place or its cells up is *parked*: what
//! it computed stays in the tree, and it waits to go on.

use std::cmp::Reverse;
use std::sync::atomic::Ordering;
use std::time::Instant;

use tracing::{debug, error, warn};

use super::Pin;
use super::queue::{self, Place, Waiting};
use super::restoring::Restoring;
use super::sequence::{Follows, GROWTH, Running, Sequence, Work};
use super::step::Scheduler;
use crate::engine::Engine;
use crate::kv::{Restorable, Standing};
use crate::request::{CacheUse, Finish, MissCause, Owner};
use crate::telemetry::{MissedRecord, Record};

/// A request follows another that is computing its next tokens if that saves at least this many. Fewer than a third of a
/// small chunk are computed sooner than waited for.
const FOLLOW_MIN: usize = 32;

impl<E: Engine> Scheduler<E> {
    /// Followers take what their leaders computed; one whose leader is done with the common part or gone goes on by itself.
    ///
    /// A leader stands before its followers. One that was parked and runs again stands behind them and may follow one of
    /// them: it is their leader no longer, or both would wait for each other.
    pub(super) fn follow_leaders(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            if self.follow_leader(index) {
                index += 1;
            }
        }
    }

    /// The same for the sequence at `index`; `false` if it does not run any more.
    fn follow_leader(&mut self, index: usize) -> bool {
        let Some(follows) = self.running[index].sequence.follows else { return true };
        let leader = self.running[..index].iter().find(|other| other.sequence.key == follows.leader);
        let n_led = leader.map(|leader| leader.n_past().min(follows.n_common));
        let follower = &mut self.running[index];
        let n = n_led.unwrap_or(follows.n_common);
        let tokens = &follower.sequence.tokens[..n];
        if let Err(error) = self.cache.advance(&mut self.engine, &mut follower.standing, tokens) {
            self.finish(index, Finish::Error, Some(error.to_string()));
            return false;
        }
        let n_past = follower.n_past();
        if n_past < follows.n_common && n_led.is_some() {
            return true;
        }
        follower.sequence.follows = None;
        let n_left = follows.n_common - n_past;
        // The leader is gone: what it had been promised for the common part goes to us, or to the next leader.
        if n_left > 0 {
            let follows = self.find_leader(&self.running[index].sequence, n_past, index);
            let follower = &mut self.running[index];
            follower.sequence.follows = follows;
            let n_led = follows.map_or(0, |follows| follows.n_common - n_past);
            let n_more = n_left.saturating_sub(n_led);
            if self.cache.reserve(&mut follower.standing, n_more) < n_more {
                self.park(index);
                return false;
            }
            if follows.is_some() {
                return true;
            }
        }
        // Behind what it had in common with its leader, it may have been saved itself.
        let Running { sequence, .. } = &self.running[index];
        match self.cache.restorable(sequence.holder, sequence.reusable()) {
            Some(restorable) if !restorable.is_faster => {
                self.tell_slower(restorable);
                self.tell_admitted(index, MissCause::RestoreSlower);
            }
            Some(restorable) if restorable.n_stand == n_past => {
                self.running[index].sequence.restoring = Some(Restoring::new(Instant::now(), n_past));
            }
            _ => {
                let cause = self.miss_cause(&self.running[index].sequence);
                self.tell_admitted(index, cause);
            }
        }
        true
    }

    /// Admits those who wait, one after the other, while they fit; then a pin to warm.
    pub(super) fn admit(&mut self) {
        if self.savings.sweep_wait().is_some() {
            return;
        }
        while let Some(index) = self.next_waiting() {
            if self.n_answering() >= self.parallel {
                let newcomer = self.as_waiting(&self.waiting[index]);
                let Some(place) = self.place_for(&newcomer) else { break };
                self.park(place);
            }
            // What was parked stands behind it.
            let sequence = self.waiting.remove(index);
            let (key, was_running) = (sequence.key, sequence.was_running);
            if let Some(sequence) = self.try_admit(sequence) {
                self.waiting.insert(0, sequence);
                break;
            }
            if !was_running {
                self.n_waiting.fetch_sub(1, Ordering::Relaxed);
            }
            let is_passed_over = self.waiting.iter().any(|sequence| sequence.key < key);
            self.n_passed = if is_passed_over { self.n_passed + 1 } else { 0 };
        }
        self.is_warming_blocked = false;
        if self.waiting.is_empty()
            && let Some(index) = self.pins.next()
        {
            self.is_warming_blocked = !self.start_warming(index);
        }
    }

    /// Who is next; where there is room, at times the one that has waited longest, which keeps its place then. One place alone
    /// is kept so.
    fn next_waiting(&mut self) -> Option<usize> {
        let is_turn = self.n_passed >= queue::TURN
            && self.n_answering() < self.parallel
            && !self.running.iter().any(|running| running.sequence.keeps_place);
        if is_turn {
            let oldest = self.waiting.iter_mut().enumerate().min_by_key(|(_, sequence)| sequence.key);
            return oldest.map(|(index, sequence)| {
                sequence.keeps_place = true;
                index
            });
        }
        queue::next(self.waiting.iter().map(|sequence| self.as_waiting(sequence)))
    }

    fn as_waiting(&self, sequence: &Sequence<E::Sampler>) -> Waiting {
        Waiting {
            priority: sequence.priority,
            n_running: self.n_running(sequence.holder.owner),
            was_running: sequence.was_running,
            share: self.shares.of(sequence.holder.owner.client()),
            key: sequence.key,
        }
    }

    /// Answers in progress of the client of `owner`.
    fn n_running(&self, owner: Owner) -> usize {
        let answers = self.running.iter().filter(|running| !running.sequence.is_warming());
        answers.filter(|running| running.sequence.holder.owner.is_client_of(owner)).count()
    }

    /// The running answer whose place `newcomer` takes, if it may take one.
    fn place_for(&self, newcomer: &Waiting) -> Option<usize> {
        let answers = self.running.iter().enumerate().filter(|(_, running)| !running.sequence.is_warming());
        let (indices, places): (Vec<usize>, Vec<Place>) = answers
            .map(|(index, Running { sequence, .. })| {
                let place = Place {
                    priority: sequence.priority,
                    n_running: self.n_running(sequence.holder.owner),
                    has_spoken: sequence.has_spoken(),
                    is_kept: sequence.keeps_place,
                };
                (index, place)
            })
            .unzip();
        queue::gives_way(newcomer, &places).map(|place| indices[place])
    }

    /// The one that matters least of those running that `may` be meant: the newest of the lowest class, a pin that is just
    /// warming before all others.
    pub(super) fn least(&self, may: impl Fn(&Sequence<E::Sampler>) -> bool) -> Option<usize> {
        let running = self.running.iter().enumerate().filter(|(_, running)| may(&running.sequence));
        let order = |&(index, Running { sequence, .. }): &(usize, &Running<_>)| {
            (!sequence.is_warming(), sequence.priority, Reverse(index))
        };
        running.min_by_key(order).map(|(index, _)| index)
    }

    /// Makes a sequence run; gives it back if it does not fit now. One that cannot ever fit is ended.
    fn try_admit(&mut self, mut sequence: Sequence<E::Sampler>) -> Option<Sequence<E::Sampler>> {
        let (n_tokens, n_cells) = (sequence.tokens.len(), self.cache.cells().total);
        if n_tokens > n_cells {
            self.end(sequence, Finish::Error, Some(format!("prompt has {n_tokens} tokens, context holds {n_cells}")));
            return None;
        }
        if let Err(error) = self.make_sampler(&mut sequence) {
            self.end(sequence, Finish::Error, Some(error));
            return None;
        }
        if self.cache.is_shared()
            && let Some(pin) = self.pins.cold_prefix_of(sequence.holder, &sequence.tokens)
        {
            self.start_warming(pin);
        }
        loop {
            let n_hit = self.cache.find(sequence.holder, sequence.reusable());
            let follows = self.find_leader(&sequence, n_hit, self.running.len());
            // A follower takes what its leader computes first, and is restored behind that.
            let found = match follows {
                Some(_) => None,
                None => self.cache.restorable(sequence.holder, sequence.reusable()),
            };
            let restorable = found.filter(|found| found.is_faster);
            let slower = found.filter(|found| !found.is_faster);
            let cause = if slower.is_some() { MissCause::RestoreSlower } else { self.miss_cause(&sequence) };
            match self.stand(&sequence, follows, restorable) {
                Err(error) => {
                    self.end(sequence, Finish::Error, Some(error));
                    return None;
                }
                Ok(Some(standing)) => {
                    slower.into_iter().for_each(|slower| self.tell_slower(slower));
                    sequence.restoring = restorable.map(|_| Restoring::new(Instant::now(), n_hit));
                    self.start(sequence, standing, follows, cause);
                    return None;
                }
                // Room is made by whoever matters least: a pin that is just warming, answers of lower classes, then, when
                // nobody else runs, warm pins.
                Ok(None) => match self
                    .least(|other| other.is_warming() || (other.priority < sequence.priority && !other.keeps_place))
                {
                    Some(index) => self.park(index),
                    None if !self.running.is_empty() => return Some(sequence),
                    None if self.give_up_pins() => {}
                    None => {
                        let error = format!("no room for a prompt of {n_tokens} tokens among {n_cells} cells");
                        self.end(sequence, Finish::Error, Some(error));
                        return None;
                    }
                },
            }
        }
    }

    fn make_sampler(&self, sequence: &mut Sequence<E::Sampler>) -> Result<(), String> {
        if let Work::Answer(answer) = &mut sequence.work
            && answer.sampler.is_none()
        {
            let sampler = self.engine.sampler(&answer.sampling, &answer.rules, &sequence.tokens);
            answer.sampler = Some(sampler.map_err(|error| error.to_string())?);
        }
        Ok(())
    }

    /// A place in the cache with the sequence's tokens and its first reservation promised.
    fn stand(
        &mut self,
        sequence: &Sequence<E::Sampler>,
        follows: Option<Follows>,
        restorable: Option<Restorable>,
    ) -> Result<Option<Standing>, String> {
        let n_cells = self.cache.cells().total;
        let n_led = follows.map_or(0, |follows| follows.n_common);
        let n_tokens = sequence.tokens.len();
        let n_first = sequence.first_reservation();
        // An answer may end at the end of the context, so no more than that is ever promised.
        let n_needed = |n_hit: usize| (n_tokens + n_first).min(n_cells).saturating_sub(n_hit.max(n_led));
        let reusable = sequence.reusable();
        let held = restorable.map_or(reusable, |restorable| &reusable[..restorable.n_stand]);
        self.cache.stand(&mut self.engine, sequence.holder, held, n_needed).map_err(|error| error.to_string())
    }

    fn start(
        &mut self,
        mut sequence: Sequence<E::Sampler>,
        standing: Standing,
        follows: Option<Follows>,
        cause: MissCause,
    ) {
        sequence.follows = follows;
        sequence.served = self.n_steps;
        sequence.was_running = false;
        debug!(
            key = sequence.key,
            n_tokens = sequence.tokens.len(),
            n_cached = standing.n_past(),
            ?follows,
            "admitted"
        );
        if let Work::Answer(answer) = &sequence.work
            && answer.cache.is_none()
            && !sequence.is_background()
        {
            let files = self.cache.touch(&standing, sequence.reusable());
            if let Some(disk) = &self.savings.disk {
                files.into_iter().for_each(|key| disk.touch(key));
            }
        }
        let is_complete = follows.is_none() && sequence.restoring.is_none();
        self.running.push(Running { sequence, standing });
        if is_complete {
            self.tell_admitted(self.running.len() - 1, cause);
        }
    }

    pub(super) fn miss_cause(&self, sequence: &Sequence<E::Sampler>) -> MissCause {
        let last_cut = sequence.cuts.last().copied().unwrap_or(0);
        self.cache.miss_cause(sequence.holder, &sequence.tokens, last_cut)
    }

    /// Tells the client what it did not have to wait for; a follower hears it when its leader is done.
    pub(super) fn tell_admitted(&mut self, index: usize, cause: MissCause) {
        let Running { sequence, standing } = &mut self.running[index];
        let n_cached = standing.n_past();
        sequence.n_began = n_cached;
        let n_prompt = sequence.n_prompt;
        let n_restored = (sequence.n_from_ram + sequence.n_from_disk).min(n_cached);
        if let Work::Answer(answer) = &mut sequence.work {
            if answer.cache.is_none()
                && let Some(missed) = self.cache.missed(sequence.holder, &sequence.tokens, n_cached)
            {
                let (n_tokens, n_more_bytes) = (missed.n_tokens, missed.n_more_bytes);
                (self.record)(Record::Missed(MissedRecord { n_tokens, n_more_bytes }));
            }
            answer.admit(CacheUse { n_prompt, n_cached, n_restored, cause }, Instant::now());
            self.pins.count_hit(sequence.holder, &sequence.tokens, n_cached);
        }
    }

    /// The running sequence before `end` in order that will compute most of what `sequence` needs next.
    fn find_leader(&self, sequence: &Sequence<E::Sampler>, n_hit: usize, end: usize) -> Option<Follows> {
        if !self.cache.is_shared() {
            return None;
        }
        let reusable = sequence.reusable();
        let leaders = self.running[..end].iter().filter(|leader| {
            sequence.holder.may_see(leader.sequence.holder)
                && leader.sequence.tokens.len() == leader.sequence.n_prompt
                && leader.n_past() <= n_hit
        });
        let follows = leaders.map(|leader| {
            let tokens = leader.sequence.tokens.iter().zip(reusable);
            Follows { leader: leader.sequence.key, n_common: tokens.take_while(|(a, b)| a == b).count() }
        });
        follows.max_by_key(|follows| follows.n_common).filter(|follows| follows.n_common >= n_hit + FOLLOW_MIN)
    }

    pub(super) fn n_answering(&self) -> usize {
        self.running.iter().filter(|running| !running.sequence.is_warming()).count()
    }

    /// Starts to warm a cold pin, if it fits without taking anything from running sequences.
    fn start_warming(&mut self, index: usize) -> bool {
        let pin = self.pins.start(index);
        let (holder, prompt) = (pin.holder(), pin.prompt.clone());
        self.next_key += 1;
        let mut sequence = Sequence::warming(self.next_key, index, holder, prompt);
        let n_hit = self.cache.find(sequence.holder, &sequence.tokens);
        let found = self.cache.restorable(sequence.holder, &sequence.tokens);
        let restorable = found.filter(|found| found.is_faster);
        if restorable.is_none() {
            let cause = self.miss_cause(&sequence);
            self.pins.explain(index, cause);
        }
        match self.stand(&sequence, None, restorable) {
            Ok(Some(standing)) => {
                sequence.restoring = restorable.map(|_| Restoring::new(Instant::now(), n_hit));
                let is_held = standing.n_past() == sequence.tokens.len();
                self.start(sequence, standing, None, MissCause::Cold);
                // Another pin begins with it, or it was given up and not evicted: no step will end it.
                if is_held {
                    self.finish(self.running.len() - 1, Finish::Stop, None);
                }
                return true;
            }
            Ok(None) => self.pins.set_cold(index),
            Err(error) => {
                error!(error, "warming a pin");
                self.pins.set_failed(index);
            }
        }
        false
    }

    /// Promises more cells to those who used theirs up; parks who matters least if there are none.
    pub(super) fn grow(&mut self) {
        let mut index = 0;
        while index < self.running.len() {
            let running = &mut self.running[index];
            let n_past = running.n_past();
            let is_short = running.sequence.is_decoding(n_past) && running.standing.n_reserved() == 0;
            if !is_short {
                index += 1;
                continue;
            }
            let n_cells = self.cache.cells().total;
            let n = GROWTH.min(n_cells - n_past);
            if self.cache.reserve(&mut running.standing, n) > 0 {
                index += 1;
                continue;
            }
            // Warm pins give way only when nobody else is left.
            match self.least(|_| true).filter(|_| self.running.len() > 1) {
                Some(least) => {
                    self.park(least);
                    if least < index {
                        index -= 1;
                    }
                }
                None if self.give_up_pins() => {}
                None => self.finish(index, Finish::Length, None),
            }
        }
    }

    /// Puts `new` pins in place of those with the same names. Those that would not fit are refused as a whole.
    pub(super) fn repin(&mut self, new: Vec<Pin>) {
        let pins = self.pins.with(&new);
        if let Err(error) = super::pins::check(&pins, &self.engine.limits()) {
            error!(%error, "new pins do not fit: the old ones stay");
            return;
        }
        for index in self.pins.differing(&pins) {
            self.free_pin(index);
            if let Some(pinned) = self.pins.replace(index, pins[index].clone()) {
                self.cache.unpin(pinned);
            }
        }
        self.settle_pins();
    }

    /// Gives all warm pins up, so that their cells can be evicted. They are warmed again when nothing else is to do.
    fn give_up_pins(&mut self) -> bool {
        let given = self.pins.give_up();
        if given.is_empty() {
            return false;
        }
        warn!(n_pins = given.len(), "pins gave up their cells for a request that would not fit otherwise");
        for pinned in given {
            self.cache.unpin(pinned);
        }
        true
    }

    /// Takes a running sequence off its cells; it goes on later from what is still held then.
    pub(super) fn park(&mut self, index: usize) {
        let Running { mut sequence, standing } = self.running.remove(index);
        sequence.follows = None;
        sequence.restoring = None;
        sequence.was_running = true;
        let n_past = standing.n_past();
        debug!(key = sequence.key, n_past, "parked");
        self.cache.leave_for(&mut self.engine, standing, &sequence.tokens[..n_past], sequence.is_background());
        match sequence.work {
            Work::Warm(pin) => self.pins.set_cold(pin),
            Work::Answer(_) => {
                sequence.n_ahead = sequence.tokens.len() - n_past;
                self.waiting.push(sequence);
            }
        }
    }
}
