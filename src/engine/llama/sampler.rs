//! Defines `Sampler`: how one request's next tokens are chosen, by llama.cpp's own samplers.
//!
//! A *chain* applies its samplers to all candidates, in order, and ends with the one that picks. Values that llama.cpp
//! would assert on, or silently read as something else, are refused here.

use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::logit_bias::LlamaLogitBias;

use crate::engine::EngineError;
use crate::request::{Sampling, Token};

/// Penalties look back on this many tokens, prompt included: llama.cpp's own default.
const PENALTY_LAST_N: usize = 64;

/// One request's chain with its random numbers and the tokens it looks back on.
pub struct Sampler {
    pub(super) chain: LlamaSampler,
}

impl Sampler {
    pub(super) fn new(sampling: &Sampling, prompt: &[Token], n_vocab: i32) -> Result<Sampler, EngineError> {
        check(sampling, n_vocab)?;
        if let Some(token) = prompt.iter().find(|token| !(0..n_vocab).contains(&token.0)) {
            return Err(refused(format!("the prompt holds token {}, the vocabulary has {n_vocab}", token.0)));
        }
        let Sampling { repeat_penalty, frequency_penalty, presence_penalty, .. } = *sampling;
        let biases: Vec<LlamaLogitBias> =
            sampling.logit_bias.iter().map(|(token, bias)| LlamaLogitBias::new(LlamaToken(token.0), *bias)).collect();
        let mut samplers = vec![
            LlamaSampler::logit_bias(n_vocab, &biases),
            LlamaSampler::penalties(
                n_vocab,
                PENALTY_LAST_N as i32,
                repeat_penalty,
                frequency_penalty,
                presence_penalty,
            ),
        ];
        if sampling.temperature == 0.0 {
            samplers.push(LlamaSampler::greedy());
        } else {
            samplers.extend([
                LlamaSampler::top_k(sampling.top_k),
                LlamaSampler::top_p(sampling.top_p, 1),
                LlamaSampler::min_p(sampling.min_p, 1),
                LlamaSampler::temp(sampling.temperature),
                LlamaSampler::dist(seed(sampling.seed)),
            ]);
        }
        let seen = &prompt[prompt.len().saturating_sub(PENALTY_LAST_N)..];
        let chain = LlamaSampler::chain(samplers, true).with_tokens(seen.iter().map(|token| LlamaToken(token.0)));
        Ok(Sampler { chain })
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
    let Sampling { temperature, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, .. } = *sampling;
    within("temperature", temperature, temperature.is_finite() && temperature >= 0.0, "0 or more")?;
    within("top_p", top_p, (0.0..=1.0).contains(&top_p), "0 to 1")?;
    within("min_p", min_p, (0.0..=1.0).contains(&min_p), "0 to 1")?;
    let is_divisor = repeat_penalty > 0.0 && repeat_penalty.is_finite() && repeat_penalty.recip().is_finite();
    within("repeat_penalty", repeat_penalty, is_divisor, "more than 0")?;
    within("frequency_penalty", frequency_penalty, frequency_penalty.is_finite(), "a finite number")?;
    within("presence_penalty", presence_penalty, presence_penalty.is_finite(), "a finite number")?;
    for (token, bias) in &sampling.logit_bias {
        if !(0..n_vocab).contains(&token.0) {
            return Err(refused(format!("logit_bias for token {}, the vocabulary has {n_vocab}", token.0)));
        }
        within("logit_bias", *bias, bias.is_finite(), "a finite number")?;
    }
    Ok(())
}

fn refused(reason: String) -> EngineError {
    EngineError::Sampling(reason)
}
