//! Who joins the next step: decode first, then prefill chunks under the token budget. Pure.
//!
//! A *chunk* is the part of a prompt that one step computes. Where chunks end is a function of positions only, never of load or
//! time: batch composition moves logits, so the same prompt has to be cut at the same places whenever it is computed
//! (the map in `lib.rs`, "Invariants").

use crate::request::Priority;

/// Tokens of a full chunk. Larger ones make other streams wait longer for their next token; under 64, a matrix product
/// leaves the fast path.
pub(super) const CHUNK: usize = 256;

/// Prefill tokens of one step. One full chunk: a running stream waits for at most that between two of its tokens.
pub(super) const PREFILL_BUDGET: usize = CHUNK;

/// A sequence that has something to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its place among the running ones.
    pub(super) index: usize,
    pub(super) priority: Priority,
    /// Computed tokens, and all it has.
    pub(super) n_past: usize,
    pub(super) n_tokens: usize,
    /// Where its next chunk ends.
    pub(super) chunk_end: usize,
    /// It has sampled before and has one new token.
    pub(super) is_decoding: bool,
    /// The step in which it last computed a chunk: the one that waited longest goes first.
    pub(super) served: u64,
}

/// A sequence's part of the batch: `n` tokens from `n_past` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) index: usize,
    pub(super) n: usize,
}

/// Where the chunk that begins at `pos` ends: at the next cut, every `CHUNK` tokens after a cut, or at the prompt's end.
///
/// `cuts` rise. `pos < n_tokens`.
pub(super) fn chunk_end(cuts: &[usize], n_tokens: usize, pos: usize) -> usize {
    debug_assert!(pos < n_tokens, "a chunk begins inside the prompt");
    let n_before = cuts.partition_point(|&cut| cut <= pos);
    let last_cut = if n_before == 0 { 0 } else { cuts[n_before - 1] };
    let next_cut = cuts.get(n_before).copied().unwrap_or(n_tokens);
    let grid = last_cut + ((pos - last_cut) / CHUNK + 1) * CHUNK;
    grid.min(next_cut).min(n_tokens)
}

/// Fills one step. `is_mixed`: whether sequences may share a batch across decode and prefill; else it is either all decoding
/// ones or one chunk alone (hybrids split batches by company).
/// `n_copied`: tokens whose cells were copied for this step already; they count like computed ones.
pub(super) fn fill(candidates: &[Candidate], is_mixed: bool, n_copied: usize) -> Vec<Part> {
    let mut parts: Vec<Part> =
        candidates.iter().filter(|c| c.is_decoding).map(|c| Part { index: c.index, n: 1 }).collect();
    if !is_mixed && !parts.is_empty() {
        return parts;
    }
    let mut prefilling: Vec<&Candidate> = candidates.iter().filter(|c| !c.is_decoding).collect();
    prefilling.sort_by_key(|c| (std::cmp::Reverse(c.priority), c.served, c.index));
    let highest = prefilling.first().map(|c| c.priority);
    let mut n_left = PREFILL_BUDGET.saturating_sub(n_copied);
    for candidate in prefilling {
        let n = candidate.chunk_end - candidate.n_past;
        // A chunk is never cut to fit, and the background never rides along: its chunk would lengthen this step.
        if n > n_left || Some(candidate.priority) != highest {
            continue;
        }
        n_left -= n;
        parts.push(Part { index: candidate.index, n });
        if !is_mixed {
            break;
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunks(cuts: &[usize], n_tokens: usize, from: usize) -> Vec<usize> {
        let mut ends = vec![];
        let mut pos = from;
        while pos < n_tokens {
            pos = chunk_end(cuts, n_tokens, pos);
            ends.push(pos);
        }
        ends
    }

    #[test]
    fn chunks_end_at_cuts_and_every_256_tokens_after_one() {
        assert_eq!(chunks(&[], 600, 0), [256, 512, 600]);
        assert_eq!(chunks(&[300], 600, 0), [256, 300, 556, 600]);
        assert_eq!(chunks(&[100, 256], 256, 0), [100, 256]);
        assert_eq!(chunks(&[300], 600, 310), [556, 600]);
    }

    proptest! {
        #[test]
        fn a_prompt_is_cut_at_the_same_places_wherever_it_begins(
            cuts in proptest::collection::btree_set(1..2000usize, 0..5), n_tokens in 1..2000usize, from in 0..2000usize
        ) {
            let cuts: Vec<usize> = cuts.into_iter().filter(|&cut| cut < n_tokens).collect();
            let from = from % n_tokens;
            let whole = chunks(&cuts, n_tokens, 0);
            let rest: Vec<usize> = whole.iter().copied().filter(|&end| end > from).collect();
            prop_assert_eq!(chunks(&cuts, n_tokens, from), rest);
            prop_assert!(whole.iter().zip([0].iter().chain(&whole)).all(|(end, start)| end - start <= CHUNK));
            prop_assert!(cuts.iter().all(|cut| whole.contains(cut)));
        }
    }

    fn prefill(index: usize, priority: Priority, n: usize, served: u64) -> Candidate {
        Candidate { index, priority, n_past: 0, n_tokens: n, chunk_end: n.min(CHUNK), is_decoding: false, served }
    }

    fn decode(index: usize) -> Candidate {
        let priority = Priority::Interactive;
        Candidate { index, priority, n_past: 9, n_tokens: 10, chunk_end: 10, is_decoding: true, served: 0 }
    }

    #[test]
    fn decode_comes_first_and_chunks_fill_the_budget_whole() {
        let candidates = [
            prefill(0, Priority::Interactive, 200, 5),
            decode(1),
            prefill(2, Priority::Interactive, 100, 3),
            prefill(3, Priority::Interactive, 50, 4),
        ];
        let parts = fill(&candidates, true, 0);
        assert_eq!(parts, [Part { index: 1, n: 1 }, Part { index: 2, n: 100 }, Part { index: 3, n: 50 }]);
    }

    #[test]
    fn warming_waits_for_interactive_prefill_and_rides_beside_decoding() {
        let warming = prefill(0, Priority::Background, 1000, 0);
        assert_eq!(fill(&[warming, prefill(1, Priority::Interactive, 20, 9)], true, 0), [Part { index: 1, n: 20 }]);
        assert_eq!(fill(&[warming, decode(1)], true, 0), [Part { index: 1, n: 1 }, Part { index: 0, n: 256 }]);
    }

    #[test]
    fn an_unmixed_batch_is_all_decoding_or_one_chunk() {
        let one = prefill(0, Priority::Interactive, 20, 0);
        let two = prefill(1, Priority::Interactive, 20, 1);
        assert_eq!(fill(&[one, decode(2), decode(3)], false, 0), [Part { index: 2, n: 1 }, Part { index: 3, n: 1 }]);
        assert_eq!(fill(&[two, one], false, 0), [Part { index: 0, n: 20 }]);
    }
    #[test]
    fn what_is_copied_counts_like_what_is_computed() {
        let candidates =
            [prefill(0, Priority::Interactive, 200, 1), decode(1), prefill(2, Priority::Interactive, 50, 2)];
        assert_eq!(fill(&candidates, true, 100), [Part { index: 1, n: 1 }, Part { index: 2, n: 50 }]);
        assert_eq!(fill(&candidates, true, 256), [Part { index: 1, n: 1 }]);
    }
}
