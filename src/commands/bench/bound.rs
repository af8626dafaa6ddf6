//! What it costs to decode under the grammar of a household's tools.
//!
//! A *bound* step is one of an answer that must call a tool. Most of the model's own choices fit the grammar, and are only looked
//! at; for one that does not, the grammar is asked for all tokens. Both kinds are measured, beside steps that nothing binds, and
//! put together as if 95 of 100 choices fitted: how many really do depends on the model.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::bodies::{QUESTIONS, demo_profile};
use super::report::Floor;
use super::{Bench, BenchError, engine, median, milliseconds, say};
use crate::engine::{AnswerRules, Batch, BatchToken, Engine, Model, SeqId, Special, Vocab};
use crate::request::{Message, Role, Sampling, Token, ToolChoice, Wanted};

/// Questions that are answered, each once bound and once free.
const N_ANSWERS: usize = 6;
/// Steps of an answer: most calls are shorter.
const N_STEPS_MAX: usize = 64;
/// What the design promises for decoding with such a grammar, by decoding without.
const FIT_SHARE: f64 = 0.95;
const BOUND_BY_FREE_MIN: f64 = 0.9;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bound {
    #[serde(rename = "tools")]
    pub n_tools: usize,
    /// From the tools to the rules, the first time.
    pub rules_ms: f64,
    /// A sampler under rules that are known.
    pub sampler_ms: f64,
    pub free_step_ms: f64,
    #[serde(rename = "fitting")]
    pub n_fitting: usize,
    pub fitting_step_ms: f64,
    #[serde(rename = "refused")]
    pub n_refused: usize,
    pub refused_step_ms: f64,
    /// The decode speed under the grammar, by that without, if 95 of 100 choices fit.
    pub bound_by_free: f64,
    pub goal: Floor,
}

pub(super) fn measure<M: Model>(bench: &Bench<'_, M>) -> Result<Bound, BenchError> {
    say("answers that must call a tool");
    thread::scope(|scope| {
        // As the scheduler's: llama.cpp's threads belong to the one that asks.
        let measured = thread::Builder::new().name("hob-bench-engine".to_owned()).spawn_scoped(scope, || run(bench))?;
        measured.join().unwrap_or_else(|_| Err(BenchError::Answer("the engine's thread panicked".to_owned())))
    })
}

fn run<M: Model>(bench: &Bench<'_, M>) -> Result<Bound, BenchError> {
    let (template, vocab) = (bench.model.template(), bench.model.vocab());
    let demo = demo_profile();
    let tools =
        bench.profiles.iter().map(|profile| &profile.tools).find(|tools| !tools.is_empty()).unwrap_or(&demo.tools);
    let wanted = Wanted { tool_choice: ToolChoice::Required, ..Wanted::default() };
    let begun = Instant::now();
    let rules = template.answer(tools, &wanted, false)?.rules;
    let rules_time = begun.elapsed();
    let prepared = template.prepare(tools)?;
    let prompts: Vec<Vec<Token>> = QUESTIONS[..N_ANSWERS]
        .iter()
        .map(|question| {
            let text = prepared.render(&[Message::text(Role::User, *question)], true)?;
            Ok(vocab.bos().into_iter().chain(vocab.tokenize(&text, Special::Parsed)).collect())
        })
        .collect::<Result<_, BenchError>>()?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let mut engine = bench.model.open(&bench.context(longest + N_STEPS_MAX))?;
    let (mut bound, mut free, mut samplers) = (Steps::default(), Steps::default(), Vec::new());
    for prompt in &prompts {
        // What such a grammar needs once is made before it counts.
        let begun = Instant::now();
        engine.sampler(&Sampling::default(), &rules, prompt)?;
        samplers.push(begun.elapsed());
        answer(&mut engine, &*vocab, prompt, &rules, &mut bound)?;
        answer(&mut engine, &*vocab, prompt, &AnswerRules::default(), &mut free)?;
    }
    let (n_fitting, n_refused) = (bound.fitting.len(), bound.refused.len());
    let usual = |times: Vec<Duration>, otherwise: f64| match times.is_empty() {
        true => otherwise,
        false => milliseconds(median(times)),
    };
    let free_step_ms = usual([free.fitting, free.refused].concat(), 0.0);
    let fitting_step_ms = usual(bound.fitting, free_step_ms);
    let refused_step_ms = usual(bound.refused, fitting_step_ms);
    let bound_by_free = free_step_ms / (FIT_SHARE * fitting_step_ms + (1.0 - FIT_SHARE) * refused_step_ms);
    Ok(Bound {
        n_tools: tools.len(),
        rules_ms: milliseconds(rules_time),
        sampler_ms: milliseconds(median(samplers)),
        free_step_ms,
        n_fitting,
        fitting_step_ms,
        n_refused,
        refused_step_ms,
        bound_by_free,
        goal: Floor::at_least(BOUND_BY_FREE_MIN, bound_by_free),
    })
}

/// How long steps took, by whether the model's own choice was taken.
#[derive(Default)]
struct Steps {
    fitting: Vec<Duration>,
    refused: Vec<Duration>,
}

/// Answers `prompt`, the likeliest token each time, until it ends or has been long enough.
fn answer(
    engine: &mut impl Engine,
    vocab: &dyn Vocab,
    prompt: &[Token],
    rules: &AnswerRules,
    steps: &mut Steps,
) -> Result<(), BenchError> {
    let mut sampler = engine.sampler(&Sampling { temperature: 0.0, ..Sampling::default() }, rules, prompt)?;
    let mut row = engine::compute(engine, SeqId(0), prompt, 0, true)?;
    for pos in (prompt.len()..).take(N_STEPS_MAX) {
        let logits = engine.logits(row)?;
        let best = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(0);
        let begun = Instant::now();
        let token = engine.sample(row, &mut sampler)?;
        if vocab.is_end(token) {
            break;
        }
        engine.decode(&Batch { tokens: vec![BatchToken { token, pos, seq: SeqId(0), wants_logits: true }] })?;
        row = 0;
        // A device computes on its own; this waits for it.
        engine.logits(row)?;
        let times = if token == Token(best as i32) { &mut steps.fitting } else { &mut steps.refused };
        times.push(begun.elapsed());
    }
    engine.remove(SeqId(0), 0)?;
    Ok(())
}
