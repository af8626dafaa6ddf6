//! From logits to probabilities, for clients that want to see them.
//!
//! A *logprob* is the natural logarithm of a token's probability as the model has it, before temperature, penalties or a grammar
//! choose among the tokens.

use crate::request::Token;

/// The logprob of `chosen`, and the `n_top` likeliest tokens with theirs, likeliest first; among equals the lower id is first.
pub(crate) fn logprobs(logits: &[f32], chosen: Token, n_top: usize) -> (f32, Vec<(Token, f32)>) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let logprob = |token: usize| (f64::from(logits[token] - largest) - sum.ln()) as f32;
    let mut tokens: Vec<usize> = (0..logits.len()).collect();
    let order = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let n_top = n_top.min(tokens.len());
    if n_top < tokens.len() {
        tokens.select_nth_unstable_by(n_top, order);
        tokens.truncate(n_top);
    }
    tokens.sort_unstable_by(order);
    let top = tokens.into_iter().map(|token| (Token(token as i32), logprob(token))).collect();
    let own = usize::try_from(chosen.0).ok().filter(|token| *token < logits.len());
    (own.map_or(f32::NEG_INFINITY, logprob), top)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_the_likeliest_come_first() {
        let logits = [1.0, 3.0, f32::NEG_INFINITY, 3.0, -2.0];
        let (own, top) = logprobs(&logits, Token(0), 5);
        let ids: Vec<i32> = top.iter().map(|(token, _)| token.0).collect();
        assert_eq!(ids, [1, 3, 0, 4, 2]);
        assert_eq!(top[2].1, own);
        let sum: f32 = top.iter().map(|(_, logprob)| logprob.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert_eq!(logprobs(&logits, Token(4), 2).1, top[..2]);
        assert_eq!(logprobs(&logits, Token(2), 0), (f32::NEG_INFINITY, vec![]));
        // Large logits do not overflow.
        assert_eq!(logprobs(&[1000.0, 1000.0], Token(1), 0).0, -(2.0_f32.ln()));
    }
}
