//! Who joins the next step: decode first, then prefill chunks under the token budget. Pure.
//!
//! Every running answer has its token in every step, so that nobody's prefill holds a stream up by more than what one step
//! takes. Which prompts fill the rest is decided anew for each step, so that a long one gives way after one chunk:
//!
//! 1. The highest class among them; the others do not ride along, as their chunks would lengthen its step.
//! 2. Of these, clients that had no more than [`LEAD`] tokens more than the least served one ([`super::shares`]).
//! 3. Of these, the prompt that had fewest tokens to compute when it began: a short question waits for no long document, not
//!    even for its end. A client that asks one short question after the other is stopped by the second rule.
//! 4. But one step in [`TURN`] that compute a chunk begins with who has waited longest for one, whatever it is: nobody starves.
//!
//! So what is asked while other clients' longer prompts are computed waits for the step that runs, and for one turn in its first
//! `TURN - 1` chunks: two steps more than with the model to itself.
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

/// One step in so many that compute a chunk is for the one that has waited longest.
const TURN: u64 = 8;

/// Prompt tokens that one client may have before another that waits, too: what lies between two turns, and more than a spoken
/// question with what changed in the house.
pub(super) const LEAD: u64 = TURN * CHUNK as u64;

/// A sequence that has something to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// Its place among the running ones.
    pub(super) index: usize,
    /// Its own, or lent by one that follows it.
    pub(super) priority: Priority,
    /// Prompt tokens that its client had of late.
    pub(super) share: u64,
    /// Tokens that it had to compute when it began.
    pub(super) size: usize,
    /// Computed tokens, and all it has.
    pub(super) n_past: usize,
    pub(super) n_tokens: usize,
    /// Where its next chunk ends.
    pub(super) chunk_end: usize,
    /// It has sampled before and has one new token.
    pub(super) is_decoding: bool,
    /// The step in which it last computed something, or before which it came.
    pub(super) served: u64,
}

/// What a step is filled by, beside those who could join it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Steps before it that computed a chunk.
    pub(super) n_chunked: u64,
    /// The last one did.
    pub(super) is_after_chunk: bool,
    /// Whether sequences may share a batch across decode and prefill; else it is either all decoding ones or one chunk alone
    /// (hybrids split batches by company), in turns.
    pub(super) is_mixed: bool,
    /// Tokens whose cells were copied for this step already; they count like computed ones.
    pub(super) n_copied: usize,
}

impl Step {
    /// Whether it is for who has waited longest.
    pub(super) fn is_turn(&self) -> bool {
        self.n_chunked % TURN == TURN - 1
    }
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

/// Fills one step.
pub(super) fn fill(candidates: &[Candidate], step: Step) -> Vec<Part> {
    let mut parts: Vec<Part> =
        candidates.iter().filter(|c| c.is_decoding).map(|c| Part { index: c.index, n: 1 }).collect();
    if !step.is_mixed && step.is_after_chunk && !parts.is_empty() {
        return parts;
    }
    let mut n_left = PREFILL_BUDGET.saturating_sub(step.n_copied);
    for candidate in prefilling(candidates, step) {
        let n = candidate.chunk_end - candidate.n_past;
        // A chunk is never cut to fit.
        if n > n_left {
            continue;
        }
        n_left -= n;
        let part = Part { index: candidate.index, n };
        if !step.is_mixed {
            return vec![part];
        }
        parts.push(part);
    }
    parts
}

/// Those who may compute a chunk in this step, in order; see the module's head.
fn prefilling(candidates: &[Candidate], step: Step) -> Vec<&Candidate> {
    let all = || candidates.iter().filter(|c| !c.is_decoding);
    let longest = all().min_by_key(|c| (c.served, c.index)).filter(|_| step.is_turn());
    let highest = all().map(|c| c.priority).max();
    let of_class = || all().filter(|c| Some(c.priority) == highest);
    let least = of_class().map(|c| c.share).min().unwrap_or(0);
    let mut rest: Vec<&Candidate> = of_class().filter(|c| longest.is_none_or(|first| first.index != c.index)).collect();
    rest.sort_by_key(|c| (c.share > least + LEAD, c.size, c.index));
    longest.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::shares::Shares;
    use super::*;
    use crate::request::Owner;

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

    fn prefill(index: usize, priority: Priority, n: usize) -> Candidate {
        let (share, chunk_end, served) = (0, n.min(CHUNK), index as u64);
        Candidate { index, priority, share, size: n, n_past: 0, n_tokens: n, chunk_end, is_decoding: false, served }
    }

    fn decode(index: usize) -> Candidate {
        Candidate {
            n_past: 9,
            n_tokens: 10,
            chunk_end: 10,
            is_decoding: true,
            ..prefill(index, Priority::Interactive, 1)
        }
    }

    const MIXED: Step = Step { n_chunked: 0, is_after_chunk: false, is_mixed: true, n_copied: 0 };
    const TURNS: Step = Step { n_chunked: TURN - 1, ..MIXED };

    fn part(index: usize, n: usize) -> Part {
        Part { index, n }
    }

    #[test]
    fn decode_comes_first_and_chunks_fill_the_budget_whole() {
        let of = |index, n| prefill(index, Priority::Interactive, n);
        let candidates = [of(0, 200), decode(1), of(2, 100), of(3, 50)];
        assert_eq!(fill(&candidates, MIXED), [part(1, 1), part(3, 50), part(2, 100)]);
        assert_eq!(fill(&candidates, TURNS), [part(1, 1), part(0, 200), part(3, 50)], "the first has waited longest");
    }

    #[test]
    fn a_lower_class_waits_for_a_higher_ones_prefill_and_rides_beside_decoding() {
        let of = |priority| prefill(0, priority, 1000);
        let pairs = [
            (Priority::Background, Priority::Normal),
            (Priority::Background, Priority::Interactive),
            (Priority::Normal, Priority::Interactive),
        ];
        for (low, high) in pairs {
            assert_eq!(fill(&[of(low), prefill(1, high, 20)], MIXED), [part(1, 20)]);
            assert_eq!(fill(&[of(low), prefill(1, high, 20)], TURNS), [part(0, 256)], "but for its turn");
            assert_eq!(fill(&[of(low), decode(1)], MIXED), [part(1, 1), part(0, 256)]);
        }
    }

    #[test]
    fn the_shortest_goes_first_unless_its_client_is_far_ahead() {
        let long = prefill(0, Priority::Interactive, 6000);
        let short = |share| Candidate { share, ..prefill(1, Priority::Interactive, 256) };
        assert_eq!(fill(&[long, short(LEAD)], MIXED), [part(1, 256)]);
        assert_eq!(fill(&[long, short(LEAD + 1)], MIXED), [part(0, 256)]);
    }

    #[test]
    fn an_unmixed_batch_is_all_decoding_or_one_chunk_in_turns() {
        let unmixed = Step { is_mixed: false, ..MIXED };
        let candidates =
            [prefill(0, Priority::Interactive, 40), decode(2), decode(3), prefill(1, Priority::Interactive, 20)];
        assert_eq!(fill(&candidates, unmixed), [part(1, 20)]);
        let after = Step { is_after_chunk: true, ..unmixed };
        assert_eq!(fill(&candidates, after), [part(2, 1), part(3, 1)]);
        assert_eq!(fill(&candidates[..1], after), [part(0, 40)], "where nobody decodes, nobody is waited for");
        assert_eq!(fill(&candidates[1..2], unmixed), [part(2, 1)]);
    }

    #[test]
    fn what_is_copied_counts_like_what_is_computed() {
        let of = |index, n| prefill(index, Priority::Interactive, n);
        let candidates = [of(0, 200), decode(1), of(2, 50)];
        assert_eq!(fill(&candidates, Step { n_copied: 100, ..MIXED }), [part(1, 1), part(2, 50)]);
        assert_eq!(fill(&candidates, Step { n_copied: 256, ..MIXED }), [part(1, 1)]);
    }

    /// A prompt of a client, in a house where steps are nothing but `fill` and `Shares`.
    #[derive(Clone, Debug)]
    struct Prompt {
        client: u8,
        priority: Priority,
        n_tokens: usize,
        /// Chunks computed before it comes.
        comes: u64,
    }

    fn prompts(n_max: usize) -> impl Strategy<Value = Vec<Prompt>> {
        let priority = prop::sample::select(vec![Priority::Background, Priority::Normal, Priority::Interactive]);
        let prompt = (0..4u8, priority, 1..4000usize, 0..60u64)
            .prop_map(|(client, priority, n_tokens, comes)| Prompt { client, priority, n_tokens, comes });
        prop::collection::vec(prompt, 1..n_max)
    }

    /// Computes all `prompts`, and in each step what `decoding` streams say. For each step: what was computed of each prompt.
    fn compute(prompts: &[Prompt], decoding: usize) -> Vec<Vec<usize>> {
        let client = |prompt: &Prompt| Owner::Private([prompt.client; 32]).client();
        let mut n_past = vec![0; prompts.len()];
        let mut served: Vec<Option<u64>> = vec![None; prompts.len()];
        let mut shares = Shares::default();
        let mut steps: Vec<Vec<usize>> = Vec::new();
        while n_past.iter().zip(prompts).any(|(&n, prompt)| n < prompt.n_tokens) {
            let now = steps.len() as u64;
            let here: Vec<usize> =
                (0..prompts.len()).filter(|&i| prompts[i].comes <= now && n_past[i] < prompts[i].n_tokens).collect();
            here.iter().for_each(|&i| _ = served[i].get_or_insert(now));
            shares.attend(here.iter().map(|&i| client(&prompts[i])));
            let mut candidates: Vec<Candidate> = (0..decoding).map(|stream| decode(1000 + stream)).collect();
            candidates.extend(here.iter().map(|&i| Candidate {
                share: shares.of(client(&prompts[i])),
                size: prompts[i].n_tokens,
                n_past: n_past[i],
                n_tokens: prompts[i].n_tokens,
                chunk_end: chunk_end(&[], prompts[i].n_tokens, n_past[i]),
                served: served[i].unwrap_or(now),
                ..prefill(i, prompts[i].priority, 1)
            }));
            let parts = fill(&candidates, Step { n_chunked: now, ..MIXED });
            let mut computed = vec![0; prompts.len()];
            let mut n_streamed = 0;
            for Part { index, n } in parts {
                if index >= 1000 {
                    n_streamed += 1;
                    continue;
                }
                computed[index] = n;
                n_past[index] += n;
                served[index] = Some(now);
                shares.charge(client(&prompts[index]), n);
            }
            assert_eq!(n_streamed, decoding, "every stream has its token in every step");
            assert!(computed.iter().sum::<usize>() <= PREFILL_BUDGET);
            steps.push(computed);
            assert!(steps.len() < 10_000, "all prompts are computed");
        }
        steps
    }

    proptest! {
        #[test]
        fn nobody_waits_longer_than_a_turn_for_each_who_runs(prompts in prompts(10), decoding in 0..4usize) {
            let steps = compute(&prompts, decoding);
            for (i, prompt) in prompts.iter().enumerate() {
                let comes = prompt.comes as usize;
                let mut waited = 0;
                let mut n_past = 0;
                for computed in steps.iter().skip(comes) {
                    n_past += computed[i];
                    waited = if computed[i] > 0 || n_past == prompt.n_tokens { 0 } else { waited + 1 };
                    prop_assert!(waited <= TURN as usize * prompts.len(), "{prompt:?} waited {waited} steps");
                }
                prop_assert_eq!(n_past, prompt.n_tokens);
            }
        }

        /// While both of two clients have whole chunks to compute in the same class, neither gets ahead for long.
        #[test]
        fn two_clients_that_wait_have_the_same_but_for_a_lead(
            alices in prop::collection::vec(1..8usize, 1..10), bobs in prop::collection::vec(1..8usize, 1..10)
        ) {
            let of = |client: u8, chunks: &[usize]| -> Vec<Prompt> {
                let prompt = |&n| Prompt { client, priority: Priority::Normal, n_tokens: n * CHUNK, comes: 0 };
                chunks.iter().map(prompt).collect()
            };
            let prompts = [of(1, &alices), of(2, &bobs)].concat();
            let mut left = [alices.iter().sum::<usize>() * CHUNK, bobs.iter().sum::<usize>() * CHUNK];
            let mut had = [0usize; 2];
            for computed in compute(&prompts, 0) {
                for (prompt, n) in prompts.iter().zip(computed) {
                    let client = usize::from(prompt.client - 1);
                    had[client] += n;
                    left[client] -= n;
                }
                if left.iter().all(|&n| n > 0) {
                    // A turn may fall to the one that is ahead.
                    let bound = LEAD as usize + 2 * CHUNK;
                    prop_assert!(had[0].abs_diff(had[1]) <= bound, "{had:?}");
                }
            }
        }

        /// Whatever longer prompts run when somebody asks who had nothing of late: two steps, and its own.
        #[test]
        fn a_question_waits_two_steps_and_its_own(mut prompts in prompts(6), n_tokens in 1..7 * CHUNK, comes in 0..60u64) {
            prompts.retain(|prompt| prompt.comes < comes && prompt.n_tokens > n_tokens);
            let question = Prompt { client: 9, priority: Priority::Interactive, n_tokens, comes };
            prompts.push(question);
            let steps = compute(&prompts, 2);
            let own = steps.iter().map(|computed| computed[prompts.len() - 1]);
            let last = own.clone().rposition(|n| n > 0).map_or(0, |last| last + 1);
            // The step that ran when it came is the other of the two.
            prop_assert!(last - comes as usize <= n_tokens.div_ceil(CHUNK) + 1, "{last}");
        }
    }
}
