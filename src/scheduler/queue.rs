//! The queue: how many may wait, who is next, whose place it takes, and when somebody who finds it full should come again. Pure.
//!
//! A *place* is one of the answers in progress at once. Interactive goes before normal before background; inside a class a place
//! goes to the client that has fewest, then to the one for which least was computed of late ([`super::shares`]), then by age.
//! Who waits longest is let in after [`TURN`] others whatever it is, so that nobody waits for ever.

use std::cmp::Reverse;
use std::time::Duration;

use crate::request::Priority;

/// So many are let in before the one that waits longest, at most, once there is room. Seldom enough that a spoken question
/// does not notice, and often enough that the night's jobs end before morning.
pub(super) const TURN: usize = 8;

/// A request without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    pub(super) priority: Priority,
    /// Answers of its client that are in progress.
    pub(super) n_running: usize,
    /// It ran before and gave its place or its cells up.
    pub(super) was_running: bool,
    /// See `Shares::of`.
    pub(super) share: u64,
    /// Rises with each request that comes.
    pub(super) key: u64,
}

/// The one that is next.
pub(super) fn next(waiting: impl Iterator<Item = Waiting>) -> Option<usize> {
    let order = |one: &Waiting| (Reverse(one.priority), one.n_running, !one.was_running, one.share, one.key);
    waiting.enumerate().min_by_key(|(_, one)| order(one)).map(|(index, _)| index)
}

/// An answer in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) priority: Priority,
    /// Answers of its client that are in progress, with this one.
    pub(super) n_running: usize,
    /// It said something.
    pub(super) has_spoken: bool,
    /// It waited long enough.
    pub(super) is_kept: bool,
}

/// Whose place a newcomer takes when all are taken: of the lowest class below its own; else, in its own, of a client that has at
/// least two more than its own, if nothing was said yet. The newest gives way, and goes on later with what was computed.
pub(super) fn gives_way(newcomer: &Waiting, places: &[Place]) -> Option<usize> {
    let may = |place: &Place| {
        let is_lower = place.priority < newcomer.priority;
        let has_more = place.priority == newcomer.priority && place.n_running >= newcomer.n_running + 2;
        !place.is_kept && (is_lower || (has_more && !place.has_spoken))
    };
    let places = places.iter().enumerate().filter(|(_, place)| may(place));
    places
        .min_by_key(|(index, place)| (place.priority, Reverse(place.n_running), Reverse(*index)))
        .map(|(index, _)| index)
}

/// How many may wait, of `n_max`, when one of `priority` comes: the last quarter is kept from normal requests, the last half from
/// background ones. At least one may.
pub(super) fn n_places(n_max: usize, priority: Priority) -> usize {
    match priority {
        Priority::Interactive => n_max,
        Priority::Normal => (3 * n_max).div_ceil(4),
        Priority::Background => n_max.div_ceil(2),
    }
}

/// Prefill speed where nothing was measured yet, in tokens a second: a small machine's.
const SPEED_UNKNOWN: u64 = 100;

/// Longest time that is named, in seconds. What lies further ahead is not known, and clients that are told hours give up.
const RETRY_AFTER_MAX: u64 = 600;

/// When somebody who found the queue full should come again: when the `n_tokens` of prompts before it will be computed. In whole
/// seconds, at least one. `tokens_per_second`: as measured; 0: not yet.
pub(super) fn retry_after(n_tokens: usize, tokens_per_second: u64) -> Duration {
    let speed = if tokens_per_second == 0 { SPEED_UNKNOWN } else { tokens_per_second };
    Duration::from_secs((n_tokens as u64).div_ceil(speed).clamp(1, RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use Priority::{Background, Interactive, Normal};
    use proptest::prelude::*;

    use super::*;

    fn waiting(priority: Priority, n_running: usize, share: u64, key: u64) -> Waiting {
        Waiting { priority, n_running, was_running: false, share, key }
    }

    #[test]
    fn class_then_the_clients_places_then_its_share_then_age() {
        let check = |waiting: &[Waiting], expected| assert_eq!(next(waiting.iter().copied()), expected, "{waiting:?}");
        check(&[], None);
        check(&[waiting(Background, 0, 0, 1), waiting(Normal, 3, 9, 2), waiting(Interactive, 4, 99, 3)], Some(2));
        check(&[waiting(Normal, 2, 0, 1), waiting(Normal, 1, 5_000, 2)], Some(1));
        check(&[waiting(Normal, 1, 5_000, 1), waiting(Normal, 1, 100, 2)], Some(1));
        check(&[waiting(Normal, 1, 100, 2), waiting(Normal, 1, 100, 1)], Some(1));
        check(&[waiting(Normal, 1, 0, 1), Waiting { was_running: true, ..waiting(Normal, 1, 900, 2) }], Some(1));
    }

    fn place(priority: Priority, n_running: usize) -> Place {
        Place { priority, n_running, has_spoken: false, is_kept: false }
    }

    #[test]
    fn the_newest_of_the_lowest_class_gives_way_even_while_it_speaks() {
        let speaking = Place { has_spoken: true, ..place(Background, 2) };
        let places = [place(Normal, 1), speaking, speaking, place(Interactive, 1)];
        assert_eq!(gives_way(&waiting(Interactive, 3, 0, 9), &places), Some(2));
        assert_eq!(gives_way(&waiting(Normal, 0, 0, 9), &places), Some(2));
        assert_eq!(gives_way(&waiting(Background, 1, 0, 9), &places), None);
        let kept = Place { is_kept: true, ..place(Background, 1) };
        assert_eq!(gives_way(&waiting(Interactive, 0, 0, 9), &[kept, place(Normal, 1)]), Some(1));
    }

    #[test]
    fn one_client_with_ten_requests_lets_another_in_but_not_in_the_middle_of_an_answer() {
        let all = [place(Interactive, 3); 3];
        assert_eq!(gives_way(&waiting(Interactive, 0, 0, 9), &all), Some(2));
        assert_eq!(gives_way(&waiting(Interactive, 1, 0, 9), &all), Some(2));
        assert_eq!(gives_way(&waiting(Interactive, 2, 0, 9), &all), None, "it would have more than the other then");
        let spoken = all.map(|place| Place { has_spoken: true, ..place });
        assert_eq!(gives_way(&waiting(Interactive, 0, 0, 9), &spoken), None);
    }

    fn priority() -> impl Strategy<Value = Priority> {
        prop::sample::select(vec![Background, Normal, Interactive])
    }

    proptest! {
        /// Or two requests would take each other's place for ever.
        #[test]
        fn who_gave_way_does_not_take_the_place_back(
            taken in prop::collection::vec((priority(), 0..4usize, any::<bool>()), 1..8),
            (newcomers, client) in (priority(), 0..4usize),
        ) {
            let n_of = |client: usize, taken: &[(Priority, usize, bool)]| {
                taken.iter().filter(|(_, other, _)| *other == client).count()
            };
            let places = |taken: &[(Priority, usize, bool)]| -> Vec<Place> {
                let place = |&(priority, client, has_spoken): &_| {
                    Place { priority, n_running: n_of(client, taken), has_spoken, is_kept: false }
                };
                taken.iter().map(place).collect()
            };
            let newcomer = waiting(newcomers, n_of(client, &taken), 0, 9);
            if let Some(index) = gives_way(&newcomer, &places(&taken)) {
                let mut after = taken.clone();
                let (given_priority, given_client, _) = after.remove(index);
                after.push((newcomers, client, false));
                let given = Waiting { was_running: true, ..waiting(given_priority, n_of(given_client, &after), 0, 1) };
                let back = gives_way(&given, &places(&after));
                prop_assert_ne!(back, Some(after.len() - 1));
            }
        }
    }

    #[test]
    fn the_last_places_are_for_those_who_are_waited_for() {
        let check = |n_max, expected| {
            assert_eq!([Background, Normal, Interactive].map(|priority| n_places(n_max, priority)), expected);
        };
        check(64, [32, 48, 64]);
        check(3, [2, 3, 3]);
        check(2, [1, 2, 2]);
        check(1, [1, 1, 1]);
    }

    #[test]
    fn whoever_is_refused_is_told_when_what_is_before_it_will_be_computed() {
        let check = |n_tokens, tokens_per_second, seconds| {
            assert_eq!(retry_after(n_tokens, tokens_per_second), Duration::from_secs(seconds));
        };
        check(12_000, 400, 30);
        check(12_001, 400, 31);
        check(399, 400, 1);
        check(0, 400, 1);
        check(2_500, 0, 25);
        check(1_000_000, 20, 600);
    }
}
