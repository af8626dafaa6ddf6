//! Turns: a step is computed under one set of adapters, so sets that have work take turns. Pure: the time is an argument.
//!
//! The set *in force* stays while it has work, since a change makes the engine build its graph anew. When another set waits, it
//! stays for `TURN` at most, and not at all if who waits is more urgent. Then it is the turn of the set that waits longest.

use std::time::{Duration, Instant};

use crate::request::AdapterSet;
use crate::request::Priority;

/// Long enough that changes cost little, short enough that somebody who listens waits for it.
pub(super) const TURN: Duration = Duration::from_millis(500);

#[derive(Debug, Default)]
pub(super) struct Turns {
    in_force: AdapterSet,
    /// When that came to be; `None`: it is in force from the start on.
    since: Option<Instant>,
    /// Other sets with work, the one that waits longest first.
    waiting: Vec<Waiting>,
    n_switches: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    adapters: AdapterSet,
    since: Instant,
    /// The highest of its work.
    priority: Priority,
}

impl Turns {
    /// How often another set came into force.
    pub(super) fn n_switches(&self) -> u64 {
        self.n_switches
    }

    /// The set to compute the next step under. `ready`: all that could be computed now, in the order of admission.
    pub(super) fn next(&mut self, ready: &[(AdapterSet, Priority)], now: Instant) -> AdapterSet {
        let highest = |set| ready.iter().filter(|(adapters, _)| *adapters == set).map(|(_, priority)| *priority).max();
        self.waiting.retain_mut(|waiting| match highest(waiting.adapters) {
            Some(priority) => {
                waiting.priority = priority;
                true
            }
            None => false,
        });
        for &(adapters, priority) in ready {
            let is_known = adapters == self.in_force || self.waiting.iter().any(|other| other.adapters == adapters);
            if !is_known {
                let priority = highest(adapters).unwrap_or(priority);
                self.waiting.push(Waiting { adapters, since: now, priority });
            }
        }
        let own = highest(self.in_force);
        let is_over = self.waiting.first().is_some_and(|longest| {
            // It had the engine for itself until somebody waited.
            let begun = self.since.map_or(longest.since, |since| since.max(longest.since));
            now.saturating_duration_since(begun) >= TURN
        });
        // Whose time is over gives way to whoever waits longest; else to those who are more urgent than it is.
        let gives_way_to = |waiting: &Waiting| (own.is_some() && is_over) || Some(waiting.priority) > own;
        let urgent = self.waiting.iter().map(|waiting| waiting.priority).max();
        let is_next = |waiting: &Waiting| gives_way_to(waiting) && (is_over || Some(waiting.priority) == urgent);
        if let Some(next) = self.waiting.iter().position(is_next) {
            let next = self.waiting.remove(next);
            if let Some(priority) = own {
                self.waiting.push(Waiting { adapters: self.in_force, since: now, priority });
            }
            self.in_force = next.adapters;
            self.since = Some(now);
            self.n_switches += 1;
        }
        self.in_force
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Scale;

    const BARE: AdapterSet = AdapterSet::NONE;

    fn set(index: usize) -> AdapterSet {
        AdapterSet::NONE.with(index, Scale::ONE)
    }

    fn now(sets: &[AdapterSet]) -> Vec<(AdapterSet, Priority)> {
        sets.iter().map(|&set| (set, Priority::Interactive)).collect()
    }

    /// Turns, and what is in force so many milliseconds after the start.
    struct Day(Turns, Instant);

    impl Day {
        fn begin() -> Day {
            Day(Turns::default(), Instant::now())
        }

        fn at(&mut self, ms: u64, ready: &[(AdapterSet, Priority)]) -> AdapterSet {
            self.0.next(ready, self.1 + Duration::from_millis(ms))
        }
    }

    #[test]
    fn a_set_keeps_the_engine_as_long_as_it_alone_has_work() {
        let mut day = Day::begin();
        assert_eq!(day.at(0, &now(&[BARE])), BARE);
        assert_eq!(day.at(9_000, &now(&[BARE])), BARE);
        assert_eq!(day.0.n_switches(), 0);
        assert_eq!(day.at(9_001, &now(&[set(0)])), set(0), "the other has no more");
        assert_eq!(day.at(9_002, &[]), set(0), "nobody wants another");
        assert_eq!(day.0.n_switches(), 1);
    }

    #[test]
    fn who_waits_gets_a_turn_half_a_second_after_it_began_to_wait() {
        let mut day = Day::begin();
        let both = now(&[BARE, set(0)]);
        assert_eq!(day.at(0, &now(&[BARE])), BARE);
        assert_eq!(day.at(10_000, &both), BARE);
        assert_eq!(day.at(10_499, &both), BARE);
        assert_eq!(day.at(10_500, &both), set(0));
        assert_eq!(day.at(10_999, &both), set(0));
        assert_eq!(day.at(11_000, &both), BARE);
        assert_eq!(day.0.n_switches(), 2);
    }

    #[test]
    fn the_set_that_waits_longest_is_next_and_nobody_is_left_out() {
        let mut day = Day::begin();
        let all = now(&[BARE, set(0), set(1)]);
        let turns: Vec<AdapterSet> = (0..7).map(|n| day.at(500 * n, &all)).collect();
        assert_eq!(turns, [BARE, set(0), set(1), BARE, set(0), set(1), BARE]);
    }

    #[test]
    fn who_stopped_waiting_begins_anew() {
        let mut day = Day::begin();
        let both = now(&[BARE, set(0)]);
        day.at(0, &both);
        day.at(400, &now(&[BARE]));
        assert_eq!(day.at(600, &both), BARE);
        assert_eq!(day.at(1_099, &both), BARE);
        assert_eq!(day.at(1_100, &both), set(0));
    }

    #[test]
    fn the_more_urgent_do_not_wait_and_the_others_are_not_forgotten() {
        let mut day = Day::begin();
        let warming = (set(0), Priority::Background);
        assert_eq!(day.at(0, &[warming]), set(0));
        let both = [warming, (BARE, Priority::Interactive)];
        assert_eq!(day.at(1, &both), BARE, "somebody listens");
        assert_eq!(day.at(500, &both), BARE);
        assert_eq!(day.at(501, &both), set(0), "a step in between");
        assert_eq!(day.at(502, &both), BARE);
        let three = [warming, (set(1), Priority::Interactive)];
        assert_eq!(day.at(503, &three), set(1), "of those who wait the most urgent, when it is nobody's turn");
    }
}
