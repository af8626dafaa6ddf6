//! Ghosts: what was held once. They tell "evicted" from "never seen", and what more RAM would have saved, without keeping a
//! token of it.
//!
//! Each ghost remembers how many bytes had been lost before it. A request that comes back for it tells by the difference how
//! much larger RAM would have had to be: over all requests that is the curve of misses against RAM.

use std::collections::{HashMap, VecDeque};

use super::holder::Holder;
use crate::request::Token;

/// Why a prefix is held no more, and what it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ghost {
    pub(super) why: Lost,
    pub(super) n_tokens: usize,
    pub(super) n_bytes: u64,
    /// Bytes lost before it since the start.
    before: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lost {
    Evicted,
    /// It never fitted below the cells.
    TooLarge,
    /// It was saved, and what it stands behind could not be brought back.
    Failed,
}

/// Tokens that had to be computed, and the bytes by which RAM was too small for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missed {
    pub n_tokens: usize,
    pub n_more_bytes: u64,
}

/// Hashes of prefixes whose next token was held once.
#[derive(Debug, Default)]
pub(super) struct Ghosts {
    order: VecDeque<[u8; 32]>,
    held: HashMap<[u8; 32], Ghost>,
    n_bytes_lost: u64,
}

/// 4,096 ghosts are about 400 KiB and some days of a house's evictions.
const N_GHOSTS: usize = 4096;

impl Ghosts {
    /// `prefix`: up to and with the first of the `n_tokens` that are held no more.
    pub(super) fn remember(&mut self, holder: Holder, prefix: &[Token], why: Lost, n_tokens: usize, n_bytes: u64) {
        let hash = prefix_hash(holder, prefix);
        let ghost = Ghost { why, n_tokens, n_bytes, before: self.n_bytes_lost };
        if self.held.insert(hash, ghost).is_none() {
            self.order.push_back(hash);
        }
        self.n_bytes_lost += n_bytes;
        if self.order.len() > N_GHOSTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.held.remove(&oldest);
        }
    }

    pub(super) fn find(&self, holder: Holder, prefix: &[Token]) -> Option<Ghost> {
        if self.held.is_empty() {
            return None;
        }
        let found = self.held.get(&prefix_hash(holder, prefix));
        found.or_else(|| self.held.get(&prefix_hash(holder.house(), prefix))).copied()
    }

    /// What of `tokens` behind the first `n_hit` was held once, and how much more RAM would have kept it.
    pub(super) fn missed(&self, holder: Holder, tokens: &[Token], n_hit: usize) -> Option<Missed> {
        let mut missed: Option<Missed> = None;
        let mut at = n_hit;
        while at < tokens.len()
            && let Some(ghost) = self.find(holder, &tokens[..=at])
        {
            let n_tokens = ghost.n_tokens.min(tokens.len() - at);
            let n_more_bytes = self.n_bytes_lost - ghost.before;
            let sum = missed.get_or_insert(Missed { n_tokens: 0, n_more_bytes: 0 });
            sum.n_tokens += n_tokens;
            sum.n_more_bytes = sum.n_more_bytes.max(n_more_bytes);
            at += n_tokens.max(1);
        }
        missed
    }
}

fn prefix_hash(holder: Holder, prefix: &[Token]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    holder.hash(&mut hasher);
    let bytes: Vec<u8> = prefix.iter().flat_map(|token| token.0.to_le_bytes()).collect();
    hasher.update(&bytes);
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Owner;

    const ALICE: Holder = Holder::bare(Owner::Private([1; 32]));

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(byte.into())).collect()
    }

    #[test]
    fn a_ghost_tells_how_much_more_ram_would_have_kept_it() {
        let mut ghosts = Ghosts::default();
        let mut lose = |holder, prefix: &str, n_tokens| {
            ghosts.remember(holder, &tokens(prefix), Lost::Evicted, n_tokens, 10 * n_tokens as u64);
        };
        // A conversation went from its end, with another in between.
        lose(ALICE, "first seco", 3);
        lose(Holder::bare(Owner::Private([2; 32])), "o", 5);
        lose(ALICE, "first ", 3);
        let missed = |holder, text: &str, n_hit| ghosts.missed(holder, &tokens(text), n_hit);
        assert_eq!(missed(ALICE, "first second", 5), Some(Missed { n_tokens: 3, n_more_bytes: 30 }));
        assert_eq!(missed(ALICE, "first second", 9), Some(Missed { n_tokens: 3, n_more_bytes: 110 }));
        assert_eq!(missed(Holder::HOUSE, "first second", 5), None);
        assert_eq!(missed(ALICE, "first other", 4), None);
    }

    #[test]
    fn what_was_held_in_two_parts_counts_as_both() {
        let mut ghosts = Ghosts::default();
        ghosts.remember(ALICE, &tokens("abcd"), Lost::Evicted, 3, 30);
        ghosts.remember(ALICE, &tokens("a"), Lost::Evicted, 3, 30);
        let missed = ghosts.missed(ALICE, &tokens("abcdefgh"), 0);
        assert_eq!(missed, Some(Missed { n_tokens: 6, n_more_bytes: 60 }));
    }
}
