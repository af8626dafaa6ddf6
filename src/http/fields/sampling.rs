//! How the next token is chosen, as requests say it: OpenAI's fields, and llama-server's for the rest of its chain.
//!
//! Read from the body by itself, beside what the request asks for.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{check_count, integer, number};
use crate::http::error::ApiError;
use crate::request::{Dry, Mirostat, Penalties, Sampling, Token, Xtc};

/// Entries of `logit_bias`: OpenAI's own limit.
const LOGIT_BIAS_MAX: usize = 300;
/// Entries of `dry_sequence_breakers`; llama.cpp compares each with the vocabulary.
const BREAKERS_MAX: usize = 16;
/// Tokens that are looked back on.
const LAST_N_MAX: i64 = 1 << 20;

#[derive(Deserialize)]
pub(in crate::http) struct WireSampling {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    top_n_sigma: Option<f64>,
    xtc_probability: Option<f64>,
    xtc_threshold: Option<f64>,
    dynatemp_range: Option<f64>,
    dynatemp_exponent: Option<f64>,
    mirostat: Option<i64>,
    mirostat_tau: Option<f64>,
    mirostat_eta: Option<f64>,
    min_keep: Option<i64>,
    seed: Option<i64>,
    repeat_penalty: Option<f64>,
    repeat_last_n: Option<i64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    dry_multiplier: Option<f64>,
    dry_base: Option<f64>,
    dry_allowed_length: Option<i64>,
    dry_penalty_last_n: Option<i64>,
    dry_sequence_breakers: Option<Vec<String>>,
    logit_bias: Option<Map<String, Value>>,
    ignore_eos: Option<bool>,
}

impl WireSampling {
    /// `default`: what holds where nothing is said.
    pub(in crate::http) fn read(self, default: &Sampling) -> Result<Sampling, ApiError> {
        Ok(Sampling {
            temperature: number("temperature", self.temperature, 0.0, 2.0, default.temperature)?,
            top_p: match number("top_p", self.top_p, 0.0, 1.0, default.top_p)? {
                top_p if top_p > 0.0 => top_p,
                _ => return Err(ApiError::field("top_p", "0: must be above 0, up to 1")),
            },
            top_k: integer("top_k", self.top_k, 0, i32::MAX.into())?.map_or(default.top_k, |top_k| top_k as i32),
            min_p: number("min_p", self.min_p, 0.0, 1.0, default.min_p)?,
            typical_p: number("typical_p", self.typical_p, 0.0, 1.0, default.typical_p)?,
            // llama-server's default is -1, which is off like 0.
            top_n_sigma: number("top_n_sigma", self.top_n_sigma, -1.0, 100.0, default.top_n_sigma)?.max(0.0),
            xtc: Xtc {
                probability: number("xtc_probability", self.xtc_probability, 0.0, 1.0, default.xtc.probability)?,
                threshold: number("xtc_threshold", self.xtc_threshold, 0.0, 1.0, default.xtc.threshold)?,
            },
            dynatemp_range: number("dynatemp_range", self.dynatemp_range, 0.0, 2.0, default.dynatemp_range)?,
            dynatemp_exponent: number(
                "dynatemp_exponent",
                self.dynatemp_exponent,
                0.0,
                10.0,
                default.dynatemp_exponent,
            )?,
            mirostat: self.mirostat()?,
            min_keep: integer("min_keep", self.min_keep, 0, 1_000)?.map_or(default.min_keep, |n| n as usize),
            // -1 asks llama.cpp for a new seed each time. Wider seeds are folded, so that both halves count.
            seed: self.seed.filter(|seed| *seed != -1).map(|seed| (seed ^ (seed >> 32)) as u32),
            penalties: Penalties {
                last_n: last_n("repeat_last_n", self.repeat_last_n, default.penalties.last_n)?,
                repeat: number("repeat_penalty", self.repeat_penalty, 0.1, 10.0, default.penalties.repeat)?,
                frequency: number("frequency_penalty", self.frequency_penalty, -2.0, 2.0, default.penalties.frequency)?,
                presence: number("presence_penalty", self.presence_penalty, -2.0, 2.0, default.penalties.presence)?,
            },
            dry: Dry {
                multiplier: number("dry_multiplier", self.dry_multiplier, 0.0, 100.0, default.dry.multiplier)?,
                base: number("dry_base", self.dry_base, 1.0, 100.0, default.dry.base)?,
                allowed_length: integer("dry_allowed_length", self.dry_allowed_length, 0, LAST_N_MAX)?
                    .map_or(default.dry.allowed_length, |n| n as usize),
                last_n: last_n("dry_penalty_last_n", self.dry_penalty_last_n, default.dry.last_n)?,
                breakers: self.dry_sequence_breakers.map_or_else(|| Ok(default.dry.breakers.clone()), breakers)?,
            },
            logit_bias: self.logit_bias.as_ref().map_or(Ok(Vec::new()), logit_bias)?,
            ignores_end: self.ignore_eos.unwrap_or(false),
        })
    }

    fn mirostat(&self) -> Result<Option<Mirostat>, ApiError> {
        let version = integer("mirostat", self.mirostat, 0, 2)?.unwrap_or(0);
        let tau = number("mirostat_tau", self.mirostat_tau, 0.0, 100.0, 5.0)?;
        let eta = number("mirostat_eta", self.mirostat_eta, 0.0, 1.0, 0.1)?;
        Ok((version > 0).then_some(Mirostat { is_first: version == 1, tau, eta }))
    }
}

/// -1 is all.
fn last_n(field: &str, value: Option<i64>, default: Option<usize>) -> Result<Option<usize>, ApiError> {
    Ok(match integer(field, value, -1, LAST_N_MAX)? {
        None => default,
        Some(n) => usize::try_from(n).ok(),
    })
}

fn breakers(breakers: Vec<String>) -> Result<Vec<String>, ApiError> {
    check_count("dry_sequence_breakers", breakers.len(), 0, BREAKERS_MAX)?;
    match breakers.iter().position(|breaker| breaker.is_empty() || breaker.contains('\0')) {
        Some(index) => {
            let reason = format!("{:?}: must be a text of at least one character, none of them NUL", breakers[index]);
            Err(ApiError::field(format!("dry_sequence_breakers[{index}]"), reason))
        }
        None => Ok(breakers),
    }
}

fn logit_bias(biases: &Map<String, Value>) -> Result<Vec<(Token, f32)>, ApiError> {
    check_count("logit_bias", biases.len(), 0, LOGIT_BIAS_MAX)?;
    biases
        .iter()
        .map(|(key, value)| {
            let field = format!("logit_bias.{key}");
            let token = key.parse().ok().filter(|token| *token >= 0);
            let token = token.ok_or_else(|| ApiError::field(&field, "the key must be a token's id"))?;
            let bias = value.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
            let bias = bias.ok_or_else(|| ApiError::field(&field, format!("{value}: must be -100 to 100")))?;
            Ok((Token(token), bias as f32))
        })
        .collect()
}
