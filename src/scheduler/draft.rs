//! Defines `Drafter`: what a sequence is likely to say next, and whether computing it ahead pays. Pure.
//!
//! A *draft* is a run of tokens that followed the same tokens before, in the prompt or in the answer: names of entities, JSON and
//! quotations repeat. One step computes the newest token and its draft, and the model's own choice after each row says how much of
//! it was right. What is sampled does not depend on what was drafted; how fast it comes does.
//!
//! A *guess* is the place where the sequence may be going on. One is made and judged with every token, drafted or not, so that it
//! is known what drafts would bring without computing them. What they cost is measured: on a GPU a step of eight tokens costs
//! little more than one, on two CPU cores four times as much. This file reads no clock, computes nothing and takes no cells.

use crate::request::Token;

/// Lengths of drafts. With the newest token they make steps of 4, 8 and 16 rows: llama.cpp's CPU kernels take rows in groups of
/// four or eight (Q4_K_M on two cores: 5 rows cost 4.1 plain steps, 8 cost 4.1), and few sizes are soon measured. Longer ones
/// gained nothing there: 32 rows cost twice as much as 16.
pub(super) const LENGTHS: [usize; 3] = [3, 7, 15];

/// Tokens that must agree for a guess. Of two, two thirds of the guesses in prose are wrong; four come too late for a name that is
/// three tokens long. To look for six first found 2 % more in recorded tool calls.
const GRAM: usize = 3;

/// Slots of the table, at most 256 KiB, and at least so many for each token there is at first. Where a slot is taken, the newer
/// place stands: with four for each token the older one is lost in a fifth of all cases, and the next token's may be found.
const SLOTS: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 16;
const SLOTS_PER_TOKEN: usize = 4;

/// Where the classes of a guess begin, by the number of tokens that agree: more of them promise more.
const CLASSES: [usize; 3] = [6, 10, 17];

/// How likely the next token of a guess is right, by its class, before an answer has shown it: what it is in English prose. In
/// recorded tool calls it is 0.7 and 0.9 for the first two.
const LIKELY: [f64; 4] = [0.45, 0.6, 0.8, 0.85];

/// What one guess counts against those before it: after a dozen tokens of another kind the past is forgotten.
const WEIGHT: f64 = 0.125;

/// A draft must promise so much more than plain steps in the same time: costs and chances are estimates.
const WORTH: f64 = 1.1;

/// What each drafted token is assumed to cost where that was not measured, in plain steps: a little less than on a slow machine,
/// so that it is tried there as well.
const UNTRIED: f64 = 0.25;

/// A cost is not believed after so many steps without a draft: what else the machine did then may be over.
const STALE: u32 = 256;

/// Where one sequence's n-grams stand, its guess, and how good its guesses are.
#[derive(Debug)]
pub(super) struct Drafter {
    /// Hash of `GRAM` tokens → the newest place behind them; 0: none.
    places: Vec<u32>,
    n_read: usize,
    guess: Option<Guess>,
    likely: [f64; LIKELY.len()],
    /// The time of a step without a draft.
    plain: Option<f64>,
}

/// The sequence may go on as it did from `source` on, where `n_alike` tokens before agree (counted up to the last class).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Guess {
    source: usize,
    n_alike: usize,
}

impl Drafter {
    /// For a sequence that has `n_tokens` now.
    pub(super) fn new(n_tokens: usize) -> Drafter {
        let n_slots = (SLOTS_PER_TOKEN * n_tokens).next_power_of_two().clamp(*SLOTS.start(), *SLOTS.end());
        Drafter { places: vec![0; n_slots], n_read: 0, guess: None, likely: LIKELY, plain: None }
    }

    /// Takes in what `tokens` has more than last time. Guesses are judged from `n_prompt` on: a prompt says nothing about how
    /// the model repeats itself.
    pub(super) fn read(&mut self, tokens: &[Token], n_prompt: usize) {
        for idx in self.n_read..tokens.len() {
            if let Some(guess) = &mut self.guess {
                let is_right = tokens[guess.source] == tokens[idx];
                if idx >= n_prompt {
                    let likely = &mut self.likely[class(guess.n_alike)];
                    *likely += (f64::from(u8::from(is_right)) - *likely) * WEIGHT;
                }
                guess.source += 1;
                guess.n_alike += 1;
                if !is_right {
                    self.guess = None;
                }
            }
            self.index(&tokens[..=idx]);
        }
        self.n_read = tokens.len();
    }

    /// Enters the n-gram that ends `tokens`; the place where it stood before is the guess, if there is none yet.
    fn index(&mut self, tokens: &[Token]) {
        let end = tokens.len();
        let Some(start) = end.checked_sub(GRAM) else { return };
        let slot = slot(&tokens[start..], self.places.len());
        // Places fit 32 bits: no context has more cells.
        let source = std::mem::replace(&mut self.places[slot], end as u32) as usize;
        // Another n-gram may have the same hash.
        if self.guess.is_none() && source > 0 && tokens[source - GRAM..source] == tokens[start..] {
            let before = tokens[..source].iter().rev().zip(tokens.iter().rev());
            let n_alike = before.take(CLASSES[CLASSES.len() - 1]).take_while(|(a, b)| a == b).count();
            self.guess = Some(Guess { source, n_alike });
        }
    }

    /// What to compute ahead behind `tokens`, which were read: at most `n_max` tokens, nothing that `is_end`; none if it does not
    /// pay.
    pub(super) fn draft(
        &self,
        tokens: &[Token],
        n_max: usize,
        costs: &Costs,
        is_end: impl Fn(Token) -> bool,
    ) -> Vec<Token> {
        debug_assert_eq!(self.n_read, tokens.len(), "tokens are read before they are continued");
        let Some(guess) = self.guess else { return Vec::new() };
        // Where the guess reaches the end of the sequence it goes on in the draft itself.
        let repeated = tokens[guess.source..].iter().copied().cycle();
        let mut draft: Vec<Token> =
            repeated.take(n_max.min(LENGTHS[LENGTHS.len() - 1])).take_while(|&token| !is_end(token)).collect();
        // The token that a plain step would give comes in any case.
        let (mut expected, mut all_right, mut n) = (1.0, 1.0, 0);
        let (mut best, mut n_best) = (WORTH, 0);
        for (length_idx, &length) in LENGTHS.iter().enumerate() {
            while n < length.min(draft.len()) {
                all_right *= self.likely[class(guess.n_alike + n)];
                expected += all_right;
                n += 1;
            }
            // One that had to be cut costs no more than a whole one.
            let gain = expected / costs.of(length_idx, self.plain.is_some());
            if gain > best {
                (best, n_best) = (gain, n);
            }
        }
        draft.truncate(n_best);
        draft
    }

    /// A step of this sequence alone with `n_drafted` tokens took so long.
    pub(super) fn took(&mut self, n_drafted: usize, seconds: f64, costs: &mut Costs) {
        if n_drafted == 0 {
            self.plain = Some(self.plain.map_or(seconds, |plain| least(plain, seconds)));
            costs.age();
        } else if let Some(length_idx) = LENGTHS.iter().position(|&length| length == n_drafted)
            && let Some(plain) = self.plain
        {
            costs.measure(length_idx, seconds / plain.max(1e-9));
        }
    }
}

/// What steps with drafts cost, in steps without one; measured by all sequences together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Costs {
    /// For each of `LENGTHS`.
    ratios: [f64; LENGTHS.len()],
    /// Steps without a draft since each was measured.
    ages: [u32; LENGTHS.len()],
    is_free: bool,
}

impl Costs {
    pub(super) fn untried() -> Costs {
        Costs { ratios: [1.0; LENGTHS.len()], ages: [u32::MAX; LENGTHS.len()], is_free: false }
    }

    /// As if a draft cost nothing.
    pub(super) fn free() -> Costs {
        Costs { is_free: true, ..Costs::untried() }
    }

    /// Of a draft of `LENGTHS[length_idx]`. Before an answer knows its plain steps, whose time grows with what they look
    /// back on, nothing could be measured: no draft pays.
    fn of(&self, length_idx: usize, is_plain_known: bool) -> f64 {
        match (self.is_free, is_plain_known) {
            (true, _) => 1.0,
            (false, false) => f64::INFINITY,
            (false, true) if self.ages[length_idx] > STALE => UNTRIED.mul_add(LENGTHS[length_idx] as f64, 1.0),
            (false, true) => self.ratios[length_idx],
        }
    }

    fn measure(&mut self, length_idx: usize, ratio: f64) {
        let known = &mut self.ratios[length_idx];
        *known = if self.ages[length_idx] > STALE { ratio } else { least(*known, ratio) };
        self.ages[length_idx] = 0;
    }

    fn age(&mut self) {
        for age in &mut self.ages {
            *age = age.saturating_add(1);
        }
    }
}

/// Down at once, up slowly: what disturbs a measurement only ever adds.
fn least(known: f64, new: f64) -> f64 {
    if new < known { new } else { known + (new - known) * WEIGHT }
}

fn class(n_alike: usize) -> usize {
    CLASSES.partition_point(|&first| first <= n_alike)
}

/// Where `gram` stands in a table of `n_slots`, a power of two: the upper bits of a product are its best mixed ones.
fn slot(gram: &[Token], n_slots: usize) -> usize {
    let hash = gram.iter().fold(0u64, |hash, token| {
        (hash.rotate_left(5) ^ u64::from(token.0.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    (hash >> 32) as usize & (n_slots - 1)
}

#[cfg(test)]
mod tests;
