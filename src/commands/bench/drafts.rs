//! What drafts gain where text repeats, and what they cost where it does not.
//!
//! A *text* is an answer that the model goes on with from a beginning that is the same on every machine. It is decoded by two
//! schedulers in turn, one without drafts and one with, so that both meet the same machine; what counts is their ratio.

use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::report::Floor;
use super::{Bench, BenchError, say};
use crate::engine::{Model, Special};
use crate::request::{AdapterSet, Event, Finish, Owner, Penalties, Priority, Sampling, Token, TokenPrompt};
use crate::scheduler::{self, Lower, Options, SchedulerHandle, Speculation, Submission};
use crate::telemetry::{Record, RequestRecord};

/// Answers of each text with each scheduler. The first one of each is computed before anything counts: costs are learned in it.
const N_RUNS: usize = 4;

/// Tokens of each answer: a long spoken one.
const N_TOKENS: usize = 192;

/// Cells for both texts and their answers.
const N_CELLS: usize = 2_048;

/// Calls of tools, again and again: a small model goes on with them.
const REPEATING: &str = r#"{"name": "HassTurnOn", "arguments": {"name": "kitchen lamp", "area": "Kitchen", "domain": ["light"]}}
{"name": "HassLightSet", "arguments": {"name": "hall lamp", "area": "Hall", "brightness": 30, "domain": ["light"]}}
{"name": "HassTurnOff", "arguments": {"name": "heating", "area": "Living Room", "domain": ["climate"]}}
"#;
const N_REPEATED: usize = 5;

const PROSE: &str = "The old lighthouse keeper had not spoken to anybody for eleven days when the letter came. He read it twice, \
    laid it beside the lamp and went out to look at the sea. What he thought of there, in the wind, he told his daughter many \
    years later:";

/// One text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Drafts {
    pub text: &'static str,
    #[serde(rename = "tokens")]
    pub n_tokens: usize,
    #[serde(rename = "drafted")]
    pub n_drafted: usize,
    #[serde(rename = "accepted")]
    pub n_accepted: usize,
    pub plain_tokens_per_second: f64,
    pub drafting_tokens_per_second: f64,
    pub drafting_by_plain: f64,
    pub goal: Floor,
}

/// Measures both texts.
pub(super) fn measure<M: Model>(bench: &Bench<'_, M>) -> Result<Vec<Drafts>, BenchError> {
    let plain = Decoding::start(bench, Speculation::Off)?;
    let drafting = Decoding::start(bench, Speculation::Measured)?;
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    // Left alone, small models soon repeat themselves, which is not prose.
    let default = Sampling::default();
    let lively = Sampling {
        temperature: 0.8,
        top_p: 0.95,
        seed: Some(7),
        penalties: Penalties { repeat: 1.1, ..default.penalties },
        ..default
    };
    let texts = [
        ("tool calls that repeat", REPEATING.repeat(N_REPEATED), greedy, 1.3),
        ("prose", PROSE.to_owned(), lively, 0.97),
    ];
    let measured = texts.into_iter().map(|(text, beginning, sampling, at_least)| {
        say(&format!("drafts, {text}"));
        let (mut without, mut with) = (Decoded::default(), Decoded::default());
        for run in 0..N_RUNS {
            for (decoding, sum) in [(&plain, &mut without), (&drafting, &mut with)] {
                let decoded = decoding.decode(&*bench.model, &beginning, &sampling)?;
                if run > 0 {
                    sum.add(&decoded);
                }
            }
        }
        let (plain, drafting) = (without.tokens_per_second(), with.tokens_per_second());
        Ok(Drafts {
            text,
            n_tokens: with.n_tokens,
            n_drafted: with.n_drafted,
            n_accepted: with.n_accepted,
            plain_tokens_per_second: plain,
            drafting_tokens_per_second: drafting,
            drafting_by_plain: drafting / plain,
            goal: Floor::at_least(at_least, drafting / plain),
        })
    });
    measured.collect()
}

/// A scheduler of its own, which nobody else asks.
struct Decoding {
    handle: SchedulerHandle,
    records: Receiver<RequestRecord>,
    thread: Option<JoinHandle<()>>,
}

impl Decoding {
    fn start<M: Model>(bench: &Bench<'_, M>, speculation: Speculation) -> Result<Decoding, BenchError> {
        let (sender, records) = mpsc::sync_channel(1);
        let options = Options {
            n_cells: N_CELLS,
            parallel: 1,
            queue: 1,
            kv_type: bench.config.model.kv_type,
            threads: bench.config.model.threads,
            pins: Vec::new(),
            record: Box::new(move |record| {
                if let Record::Request(record) = record {
                    // Each is read before the next one is made.
                    let _ = sender.send(record);
                }
            }),
            open_lower: Box::new(|_, _| Lower::default()),
            speculation,
        };
        let started = scheduler::start(bench.model.clone(), options);
        let (handle, thread) = started.map_err(|error| BenchError::Answer(error.to_string()))?;
        Ok(Decoding { handle, records, thread: Some(thread) })
    }

    fn decode<M: Model>(&self, model: &M, beginning: &str, sampling: &Sampling) -> Result<Decoded, BenchError> {
        let vocab = model.vocab();
        let text = vocab.tokenize(beginning, Special::Text);
        // It goes on for as long as it may.
        let ends = (0..vocab.n_tokens() as i32).map(Token).filter(|&token| vocab.is_end(token));
        let logit_bias = ends.map(|token| (token, -100.0)).collect();
        let (events, mut answer) = tokio::sync::mpsc::channel(4 * N_TOKENS);
        let submission = Submission {
            prompt: TokenPrompt { tokens: vocab.bos().into_iter().chain(text).collect(), cuts: Vec::new() },
            sampling: Sampling { logit_bias, ..sampling.clone() },
            rules: Arc::default(),
            n_logprobs: None,
            max_tokens: Some(N_TOKENS),
            stop: Vec::new(),
            owner: Owner::Public,
            adapters: AdapterSet::NONE,
            priority: Priority::default(),
            received: Instant::now(),
            label: Default::default(),
            events,
        };
        self.handle.submit(submission).map_err(|error| BenchError::Answer(error.to_string()))?;
        while let Some(event) = answer.blocking_recv() {
            if let Event::Failed(reason) = event {
                return Err(BenchError::Answer(reason));
            }
        }
        let record = self.records.recv().map_err(|_| BenchError::Answer("the scheduler's thread ended".to_owned()))?;
        debug_assert_eq!(record.finish, Finish::Length.name());
        Ok(Decoded {
            n_tokens: record.n_generated,
            n_drafted: record.n_drafted,
            n_accepted: record.n_accepted,
            // The first token's time is the prompt's.
            n_steps_tokens: record.n_generated - 1,
            time: record.decode,
        })
    }
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported already.
            let _ = thread.join();
        }
    }
}

/// One answer, or several together.
#[derive(Default)]
struct Decoded {
    n_tokens: usize,
    n_drafted: usize,
    n_accepted: usize,
    /// Tokens that came in `time`.
    n_steps_tokens: usize,
    time: Duration,
}

impl Decoded {
    fn add(&mut self, other: &Decoded) {
        self.n_tokens += other.n_tokens;
        self.n_drafted += other.n_drafted;
        self.n_accepted += other.n_accepted;
        self.n_steps_tokens += other.n_steps_tokens;
        self.time += other.time;
    }

    fn tokens_per_second(&self) -> f64 {
        self.n_steps_tokens as f64 / self.time.as_secs_f64()
    }
}
