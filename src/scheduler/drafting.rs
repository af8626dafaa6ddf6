//! Drafts in steps: when one is computed, which of its tokens stay.
//!
//! A draft is computed where a step has one answer alone: beside another one its rows would make both wait. Its cells are private
//! until its tokens were sampled, nobody is evicted for them, and what the model did not say is taken back in the same step: between
//! two steps a sequence looks as it would without drafts. Memories that cannot be cut make none.

use std::time::Duration;

use super::batch::Part;
use super::draft::Drafter;
use super::sequence::{EVENTS_PER_STEP, Running, Work};
use super::step::Scheduler;
use crate::engine::Engine;
use crate::request::{Finish, Token};

impl<E: Engine> Scheduler<E> {
    /// What to compute behind the tokens of `parts`: something only where the one part is an answer that decodes.
    pub(super) fn draft(&mut self, parts: &[Part]) -> Vec<Token> {
        let (Some(costs), [part], true) = (&self.drafts, parts, self.cache.is_shared()) else { return Vec::new() };
        let Running { sequence, standing } = &mut self.running[part.index];
        let is_decoding = sequence.is_decoding(standing.n_past());
        let Work::Answer(answer) = &mut sequence.work else { return Vec::new() };
        if !is_decoding {
            return Vec::new();
        }
        let drafter = answer.drafter.get_or_insert_with(|| Drafter::new(sequence.tokens.len()));
        drafter.read(&sequence.tokens, sequence.n_prompt);
        // One token comes without a draft, one cell is for the newest token, and each token may be two more events.
        let n_owed = answer.max_tokens - answer.n_generated - 1;
        let n_cells = standing.n_reserved().min(self.cache.cells().free).saturating_sub(1);
        let n_events = answer.events.capacity().saturating_sub(EVENTS_PER_STEP) / 2;
        let n_rows = self.engine.limits().n_batch - 1;
        let n_max = n_owed.min(n_cells).min(n_events).min(n_rows);
        drafter.draft(&sequence.tokens, n_max, costs, |token| self.vocab.is_end(token))
    }

    /// Samples after each computed token of the sequence at `index` for as long as its draft was right, then takes the rest of the
    /// draft back. `end_row`: the row behind its last one. `Some` if the answer ends.
    pub(super) fn sample_along(
        &mut self,
        index: usize,
        end_row: usize,
        draft: &[Token],
    ) -> Result<Option<Finish>, String> {
        let first_row = end_row - 1 - draft.len();
        let n_before = self.running[index].sequence.tokens.len();
        let mut n_accepted = 0;
        let sampled = loop {
            let sampled = self.sample(index, first_row + n_accepted);
            let said = &self.running[index].sequence.tokens[n_before..];
            // What ends the answer needs no next row, even if it was drafted.
            if sampled != Ok(None) || draft.get(..=n_accepted) != Some(said) {
                break sampled;
            }
            n_accepted += 1;
        };
        let Running { sequence, standing } = &mut self.running[index];
        if let Work::Answer(answer) = &mut sequence.work {
            answer.n_drafted += draft.len();
            answer.n_accepted += n_accepted;
        }
        if n_accepted < draft.len() {
            let vacated = self.cache.vacate(&mut self.engine, standing, draft.len() - n_accepted);
            return sampled.and_then(|finish| vacated.map(|()| finish).map_err(|error| error.to_string()));
        }
        sampled
    }

    /// Tells how long a step took, if it was one answer's alone.
    pub(super) fn time_draft(&mut self, parts: &[Part], n_drafted: usize, time: Duration) {
        if let (Some(costs), [part]) = (&mut self.drafts, parts)
            && part.n == n_drafted + 1
            && let Work::Answer(answer) = &mut self.running[part.index].sequence.work
            && let Some(drafter) = &mut answer.drafter
        {
            drafter.took(n_drafted, time.as_secs_f64(), costs);
        }
    }
}
