//! Defines `Sampler`: how one request's next tokens are chosen, by llama.cpp's own samplers.
//!
//! A *chain* applies its samplers to all candidates, in order, and ends with the one that picks. A *grammar* says which tokens may
//! come. Asked for a whole vocabulary it takes milliseconds, so the chain picks first, and only where the grammar refuses that one
//! token is it asked for all of them. Values that llama.cpp would assert on, or silently read as something else, are refused
//! here.

use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;
use llama_cpp_2::token::logit_bias::LlamaLogitBias;

use super::grammar::Bound;
use super::vocab::LlamaVocab;
use crate::engine::thinking::Budget;
use crate::engine::{AnswerRules, EngineError, Special, Vocab};
use crate::request::{Mirostat, Penalties, Sampling, Token, Xtc};

/// The DRY sampler compares the end of the text with all that it looks back on, for each token.
const DRY_LAST_N_MAX: usize = 4_096;
/// Candidates that the first mirostat estimates its tail from: llama.cpp's own number.
const MIROSTAT_M: i32 = 100;
/// Tokens that a grammar refuses while it waits, before the answer fails: each would set it off and break it at once.
const N_REFUSED_MAX: usize = 16;

/// One request's chain with its random numbers and the tokens it looks back on.
pub struct Sampler {
    chain: LlamaSampler,
    grammar: Option<Bound>,
    /// The grammar waits for thinking to end, too.
    is_lazy: bool,
    budget: Option<Budget>,
    /// The last bytes of the answer that are no whole character yet.
    half: Vec<u8>,
    candidates: LlamaTokenDataArray,
    /// By token, where the grammar was asked for all.
    allowed: Vec<bool>,
}

impl Sampler {
    /// `n_cells`: as far as a sampler can look back.
    pub(super) fn new(
        model: &LlamaModel,
        vocab: &LlamaVocab,
        n_cells: usize,
        sampling: &Sampling,
        rules: &AnswerRules,
        prompt: &[Token],
    ) -> Result<Sampler, EngineError> {
        let n_vocab = model.n_vocab();
        check(sampling, n_vocab)?;
        if let Some(token) = prompt.iter().find(|token| !(0..n_vocab).contains(&token.0)) {
            return Err(refused(format!("the prompt holds token {}, the vocabulary has {n_vocab}", token.0)));
        }
        let chain = LlamaSampler::chain(samplers(model, n_cells, sampling), true);
        let longest = sampling.penalties.last_n.unwrap_or(n_cells).max(dry_last_n(sampling, n_cells));
        let seen = &prompt[prompt.len().saturating_sub(longest)..];
        let grammar = rules.grammar.as_ref().map(|grammar| Bound::open(vocab, grammar)).transpose()?;
        let budget = rules.thinking.clone().map(|thinking| {
            let opening = vocab.tokenize(&thinking.opening, Special::Parsed);
            Budget::new(thinking, &opening)
        });
        Ok(Sampler {
            chain: chain.with_tokens(seen.iter().map(|token| LlamaToken(token.0))),
            is_lazy: rules.grammar.as_ref().is_some_and(|grammar| grammar.is_lazy),
            grammar,
            budget,
            half: Vec::new(),
            candidates: LlamaTokenDataArray::new(Vec::with_capacity(n_vocab as usize), false),
            allowed: Vec::new(),
        })
    }

    /// Chooses among `logits`, which are numbers, and remembers what it chose.
    pub(super) fn sample(&mut self, logits: &[f32], vocab: &LlamaVocab) -> Result<Token, EngineError> {
        let token = match self.budget.as_ref().and_then(Budget::forced) {
            Some(token) => LlamaToken(token.0),
            None => self.choose(logits, vocab)?,
        };
        self.accept(token, vocab)?;
        Ok(Token(token.0))
    }

    fn choose(&mut self, logits: &[f32], vocab: &LlamaVocab) -> Result<LlamaToken, EngineError> {
        fill(&mut self.candidates, logits);
        self.candidates.apply_sampler(&mut self.chain);
        let mut token = self.picked()?;
        let is_bound = self.is_bound();
        let Some(grammar) = self.grammar.as_mut().filter(|_| is_bound) else { return Ok(token) };
        let mut refused_tokens = Vec::new();
        while !grammar.allows(Token(token.0), vocab)? {
            if refused_tokens.len() == N_REFUSED_MAX {
                return Err(refused("the grammar refuses what it allowed".into()));
            }
            refused_tokens.push(token);
            fill(&mut self.candidates, logits);
            // What may not come must not take the place of what may in a sampler that counts candidates.
            if grammar.is_waiting() {
                self.candidates.data.retain(|candidate| !refused_tokens.contains(&candidate.id()));
            } else {
                grammar.allow(vocab, &mut self.allowed)?;
                self.candidates.data.retain(|candidate| self.allowed[candidate.id().0 as usize]);
            }
            if self.candidates.data.is_empty() {
                return Err(refused("the grammar allows no token of this vocabulary here".into()));
            }
            self.candidates.apply_sampler(&mut self.chain);
            token = self.candidates.selected_token().ok_or_else(nothing_left)?;
        }
        Ok(token)
    }

    /// While the model thinks, a grammar that waits for a trigger does not look.
    fn is_bound(&self) -> bool {
        self.grammar.is_some() && !(self.is_lazy && self.budget.as_ref().is_some_and(Budget::is_thinking))
    }

    fn accept(&mut self, token: LlamaToken, vocab: &LlamaVocab) -> Result<(), EngineError> {
        let was_bound = self.is_bound();
        let mut accepted = Vec::new();
        if let Some(budget) = &mut self.budget {
            vocab.piece(Token(token.0), &mut self.half);
            let is_whole = std::str::from_utf8(&self.half).map_or_else(|error| error.error_len().is_some(), |_| true);
            if is_whole {
                self.half.clear();
            }
            let end = budget.accept(Token(token.0), is_whole);
            // The mark that ends thinking may be what the grammar waits for.
            accepted.extend(end.unwrap_or_default().iter().filter(|_| !was_bound).map(|token| LlamaToken(token.0)));
        }
        if was_bound {
            accepted.push(token);
        }
        if let Some(grammar) = &mut self.grammar {
            for token in accepted {
                grammar.accept(Token(token.0), vocab)?;
            }
        }
        self.chain.accept(token);
        Ok(())
    }

    fn picked(&self) -> Result<LlamaToken, EngineError> {
        self.candidates.selected_token().ok_or_else(nothing_left)
    }
}

fn fill(candidates: &mut LlamaTokenDataArray, logits: &[f32]) {
    candidates.data.clear();
    let numbered = logits.iter().enumerate();
    candidates.data.extend(numbered.map(|(id, &logit)| LlamaTokenData::new(LlamaToken(id as i32), logit, 0.0)));
    (candidates.selected, candidates.sorted) = (None, false);
}

/// The samplers of llama-server, in its order; those that would do nothing are left out.
fn samplers(model: &LlamaModel, n_cells: usize, sampling: &Sampling) -> Vec<LlamaSampler> {
    let n_vocab = model.n_vocab();
    let min_keep = sampling.min_keep;
    let mut samplers = Vec::new();
    let mut biases: Vec<LlamaLogitBias> =
        sampling.logit_bias.iter().map(|(token, bias)| LlamaLogitBias::new(LlamaToken(token.0), *bias)).collect();
    if sampling.ignores_end {
        let vocab = model.vocab();
        let ends = vocab.tokens().filter(|token| vocab.is_eog(*token));
        biases.extend(ends.map(|token| LlamaLogitBias::new(token, f32::NEG_INFINITY)));
    }
    if !biases.is_empty() {
        samplers.push(LlamaSampler::logit_bias(n_vocab, &biases));
    }
    let seed = seed(sampling.seed);
    if let Some(Mirostat { is_first, tau, eta }) = sampling.mirostat {
        samplers.push(LlamaSampler::temp(sampling.temperature));
        samplers.push(match is_first {
            true => LlamaSampler::mirostat(n_vocab, seed, tau, eta, MIROSTAT_M),
            false => LlamaSampler::mirostat_v2(seed, tau, eta),
        });
        return samplers;
    }
    let Penalties { last_n, repeat, frequency, presence } = sampling.penalties;
    if (repeat, frequency, presence) != (1.0, 0.0, 0.0) {
        let last_n = last_n.unwrap_or(n_cells) as i32;
        samplers.push(LlamaSampler::penalties(n_vocab, last_n, repeat, frequency, presence));
    }
    let dry = &sampling.dry;
    if dry.multiplier > 0.0 {
        let (allowed, last_n) = (dry.allowed_length as i32, dry_last_n(sampling, n_cells) as i32);
        samplers.push(LlamaSampler::dry(model, dry.multiplier, dry.base, allowed, last_n, &dry.breakers));
    }
    if sampling.temperature == 0.0 {
        samplers.push(LlamaSampler::greedy());
        return samplers;
    }
    if sampling.top_n_sigma > 0.0 {
        samplers.push(LlamaSampler::top_n_sigma(sampling.top_n_sigma));
    }
    if sampling.top_k > 0 {
        samplers.push(LlamaSampler::top_k(sampling.top_k));
    }
    if sampling.typical_p < 1.0 {
        samplers.push(LlamaSampler::typical(sampling.typical_p, min_keep));
    }
    if sampling.top_p < 1.0 {
        samplers.push(LlamaSampler::top_p(sampling.top_p, min_keep.max(1)));
    }
    if sampling.min_p > 0.0 {
        samplers.push(LlamaSampler::min_p(sampling.min_p, min_keep.max(1)));
    }
    let Xtc { probability, threshold } = sampling.xtc;
    if probability > 0.0 {
        samplers.push(LlamaSampler::xtc(probability, threshold, min_keep, seed));
    }
    samplers.push(LlamaSampler::temp_ext(sampling.temperature, sampling.dynatemp_range, sampling.dynatemp_exponent));
    samplers.push(LlamaSampler::dist(seed));
    samplers
}

fn dry_last_n(sampling: &Sampling, n_cells: usize) -> usize {
    match sampling.dry.multiplier > 0.0 {
        true => sampling.dry.last_n.unwrap_or(n_cells).min(DRY_LAST_N_MAX),
        false => 0,
    }
}

/// llama.cpp reads its largest seed as "any", which would make a client's own seed of that value random.
fn seed(seed: Option<u32>) -> u32 {
    match seed {
        None => u32::MAX,
        Some(u32::MAX) => u32::MAX - 1,
        Some(seed) => seed,
    }
}

fn check(sampling: &Sampling, n_vocab: i32) -> Result<(), EngineError> {
    let within = |name: &str, value: f32, is_fine: bool, accepted: &str| match is_fine {
        true => Ok(()),
        false => Err(refused(format!("{name} = {value}: must be {accepted}"))),
    };
    let at_least_0 = |name: &str, value: f32| within(name, value, value.is_finite() && value >= 0.0, "0 or more");
    let finite = |name: &str, value: f32| within(name, value, value.is_finite(), "a finite number");
    let share = |name: &str, value: f32| within(name, value, (0.0..=1.0).contains(&value), "0 to 1");
    at_least_0("temperature", sampling.temperature)?;
    share("top_p", sampling.top_p)?;
    share("min_p", sampling.min_p)?;
    share("typical_p", sampling.typical_p)?;
    at_least_0("top_n_sigma", sampling.top_n_sigma)?;
    share("xtc_probability", sampling.xtc.probability)?;
    share("xtc_threshold", sampling.xtc.threshold)?;
    at_least_0("dynatemp_range", sampling.dynatemp_range)?;
    at_least_0("dynatemp_exponent", sampling.dynatemp_exponent)?;
    let Penalties { repeat, frequency, presence, .. } = sampling.penalties;
    let is_divisor = repeat > 0.0 && repeat.is_finite() && repeat.recip().is_finite();
    within("repeat_penalty", repeat, is_divisor, "more than 0")?;
    finite("frequency_penalty", frequency)?;
    finite("presence_penalty", presence)?;
    at_least_0("dry_multiplier", sampling.dry.multiplier)?;
    within("dry_base", sampling.dry.base, sampling.dry.base.is_finite() && sampling.dry.base >= 1.0, "1 or more")?;
    if let Some(breaker) = sampling.dry.breakers.iter().find(|breaker| breaker.is_empty() || breaker.contains('\0')) {
        return Err(refused(format!("dry_sequence_breakers: {breaker:?} must be a text without NUL")));
    }
    if let Some(Mirostat { tau, eta, .. }) = sampling.mirostat {
        at_least_0("mirostat_tau", tau)?;
        at_least_0("mirostat_eta", eta)?;
    }
    for (token, bias) in &sampling.logit_bias {
        if !(0..n_vocab).contains(&token.0) {
            return Err(refused(format!("logit_bias for token {}, the vocabulary has {n_vocab}", token.0)));
        }
        finite("logit_bias", *bias)?;
    }
    Ok(())
}

fn nothing_left() -> EngineError {
    refused("no token was left to choose".into())
}

fn refused(reason: String) -> EngineError {
    EngineError::Sampling(reason)
}

#[cfg(test)]
mod tests;
