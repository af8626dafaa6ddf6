//! Learned pins: which prefixes a client sends so often that they are worth keeping, though nobody configured them. Pure.
//!
//! A *prefix* here ends where a section of the prompt does, its system text or its tools: what differs behind it is the
//! conversation's own.

use std::collections::{HashMap, VecDeque};

use super::holder::Holder;
use super::segment::PrefixHash;
use crate::request::{Owner, Token};

/// A shorter prefix is computed in a moment.
const LEARNED_MIN: usize = 256;

/// So many requests began with it.
const N_SEEN: u32 = 3;

/// Prefixes that are counted at once: a house has some clients with some prompts each.
const N_COUNTED: usize = 1024;

#[derive(Debug, Default)]
pub struct Learned {
    counts: HashMap<(Holder, PrefixHash), u32>,
    order: VecDeque<(Holder, PrefixHash)>,
}

impl Learned {
    /// Forgets the counts of owners that are meant.
    pub fn forget(&mut self, is_meant: impl Fn(Owner) -> bool) {
        self.counts.retain(|(holder, _), _| !is_meant(holder.owner));
        self.order.retain(|(holder, _)| !is_meant(holder.owner));
    }

    /// Counts a request; gives the length of the longest prefix of it that was seen often enough. `cuts` rise.
    pub fn see(&mut self, holder: Holder, tokens: &[Token], cuts: &[usize]) -> Option<usize> {
        if holder.is_house() {
            return None;
        }
        let mut longest = None;
        for &cut in cuts.iter().filter(|&&cut| (LEARNED_MIN..tokens.len()).contains(&cut)) {
            let key = (holder, PrefixHash::of(&tokens[..cut]));
            let count = self.counts.entry(key).or_insert_with(|| {
                self.order.push_back(key);
                0
            });
            *count += 1;
            if *count >= N_SEEN {
                longest = Some(cut);
            }
        }
        while self.order.len() > N_COUNTED {
            if let Some(oldest) = self.order.pop_front() {
                self.counts.remove(&oldest);
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));

    #[test]
    fn the_third_request_with_a_long_prefix_makes_it_a_pin_for_its_owner() {
        let mut learned = Learned::default();
        let prompt = |question: i32| -> Vec<Token> { (0..300).chain([question, 0]).map(Token).collect() };
        let mut see = |holder, question, cuts: &[usize]| learned.see(holder, &prompt(question), cuts);
        assert_eq!(see(ALICE, 1, &[260, 300]), None);
        assert_eq!(see(ALICE, 2, &[260]), None);
        assert_eq!(see(Holder::bare(Owner::Private([2; 32])), 2, &[260, 300]), None, "another's requests do not count");
        assert_eq!(see(ALICE, 3, &[260, 300]), Some(260));
        assert_eq!(see(ALICE, 4, &[260, 300]), Some(300), "the longest");
        for question in 0..4 {
            assert_eq!(see(ALICE, question, &[255]), None, "too short to be worth it");
            assert_eq!(see(Holder::HOUSE, question, &[300]), None, "the house's own are configured");
        }
    }

    #[test]
    fn what_is_counted_is_bounded() {
        let mut learned = Learned::default();
        for first in 0..2_000 {
            let tokens: Vec<Token> = (first..first + 300).map(Token).collect();
            learned.see(ALICE, &tokens, &[256]);
        }
        assert_eq!((learned.counts.len(), learned.order.len()), (N_COUNTED, N_COUNTED));
    }
}
