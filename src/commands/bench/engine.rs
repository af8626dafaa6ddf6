//! The engine alone: what a prefill or a decode costs with nothing of hob around it.
//!
//! *Alone* means: the same tokens at the same positions behind the same cells, each chunk in a batch of its own, on a thread made
//! like the scheduler's with as many threads of its own. The difference to a request's TTFT is everything that hob adds.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::BenchError;
use crate::engine::{AnswerRules, Batch, BatchToken, ContextOptions, Engine, Memory, Model, SeqId, Threads};
use crate::request::{Sampling, Token};

/// Tokens of one batch: a full chunk of the scheduler's.
pub(super) const CHUNK: usize = 256;

/// Tokens decoded to measure the speed.
pub(super) const N_DECODE: usize = 30;

/// Tokens computed to measure prefill.
pub(super) const N_PREFILL: usize = CHUNK;

/// A prompt of which the first `n_held` tokens are held; the rest is to be computed.
pub(super) struct Suffix {
    pub(super) tokens: Vec<Token>,
    pub(super) n_held: usize,
}

/// An engine on its own thread that computes suffixes behind a head. Ends when it is dropped.
pub(super) struct Alone {
    suffixes: mpsc::SyncSender<Suffix>,
    times: mpsc::Receiver<Result<Duration, BenchError>>,
}

impl Alone {
    /// Begins to compute `head`. Suffixes keep their cells, as the daemon's questions do, so there must be room for all.
    pub(super) fn open<M: Model>(
        model: Arc<M>,
        options: &ContextOptions,
        head: Vec<Token>,
    ) -> Result<Alone, BenchError> {
        let options = options.clone();
        let (suffixes, inbox) = mpsc::sync_channel::<Suffix>(1);
        let (outbox, times) = mpsc::sync_channel(1);
        thread::Builder::new().name("hob-bench-engine".to_owned()).spawn(move || {
            let run = || -> Result<(), BenchError> {
                let mut engine = model.open(&options)?;
                compute(&mut engine, SeqId(0), &head, 0, false)?;
                let _ = outbox.send(Ok(Duration::ZERO));
                // Each sequence's tokens, by its id.
                let mut held = vec![head];
                for suffix in inbox {
                    let _ = outbox.send(Ok(time(&mut engine, &mut held, suffix)?));
                }
                Ok(())
            };
            if let Err(error) = run() {
                let _ = outbox.send(Err(error));
            }
        })?;
        Ok(Alone { suffixes, times })
    }

    /// Returns when the head is computed. To be called once, before the first suffix.
    pub(super) fn wait(&self) -> Result<(), BenchError> {
        self.next().map(drop)
    }

    /// How long the suffix takes until its logits are there.
    pub(super) fn time(&self, suffix: Suffix) -> Result<Duration, BenchError> {
        // If the thread is gone, what it said last is the answer.
        let _ = self.suffixes.send(suffix);
        self.next()
    }

    fn next(&self) -> Result<Duration, BenchError> {
        self.times.recv().unwrap_or_else(|_| Err(BenchError::Answer("the engine's thread ended".to_owned())))
    }
}

/// Stands a new sequence on what is `held`, as the daemon does, and computes the rest.
fn time(engine: &mut impl Engine, held: &mut Vec<Vec<Token>>, suffix: Suffix) -> Result<Duration, BenchError> {
    let Suffix { tokens, n_held } = suffix;
    let is_shared = engine.limits().memory == Memory::Rewindable;
    let seq = SeqId(held.len() as u16);
    if n_held > 0 {
        // It may have found more than the head: the first words of an earlier question.
        let holds = |other: &Vec<Token>| other.starts_with(&tokens[..n_held]) && (is_shared || other.len() == n_held);
        let missing = || BenchError::Answer(format!("the daemon reused {n_held} tokens that nobody computed"));
        let src = SeqId(held.iter().position(holds).ok_or_else(missing)? as u16);
        match is_shared {
            true => engine.share(src, seq, 0..n_held)?,
            false => engine.copy_whole(src, seq)?,
        }
    }
    let started = Instant::now();
    compute(engine, seq, &tokens[n_held..], n_held, true)?;
    let time = started.elapsed();
    if is_shared {
        held.push(tokens);
    } else {
        // Whole copies of the head would fill the context.
        engine.remove(seq, 0)?;
    }
    Ok(time)
}

/// Computes `tokens` from position `pos` on, and the last one's logits if they are wanted; gives their row.
pub(super) fn compute(
    engine: &mut impl Engine,
    seq: SeqId,
    tokens: &[Token],
    pos: usize,
    wants_logits: bool,
) -> Result<usize, BenchError> {
    let mut last_row = 0;
    for (start, chunk) in (pos..).step_by(CHUNK).zip(tokens.chunks(CHUNK)) {
        let end = pos + tokens.len();
        let token = |(pos, &token): (usize, &Token)| BatchToken {
            token,
            pos,
            seq,
            wants_logits: wants_logits && pos + 1 == end,
        };
        engine.decode(&Batch { tokens: (start..).zip(chunk).map(token).collect() })?;
        last_row = chunk.len() - 1;
    }
    if wants_logits {
        // A device computes on its own; this waits for it.
        engine.logits(last_row)?;
    }
    Ok(last_row)
}

/// How long `N_PREFILL` tokens and then `N_DECODE` steps take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pace {
    pub(super) prefill: Duration,
    pub(super) decode: Duration,
}

/// Measures `n_runs` times with `threads` in a context of its own, after one run that is not counted.
pub(super) fn pace<M: Model>(
    model: &M,
    options: &ContextOptions,
    threads: Threads,
    n_runs: usize,
) -> Result<Vec<Pace>, BenchError> {
    let options = ContextOptions { threads, n_cells: 2 * CHUNK, n_seq_max: 1, ..options.clone() };
    let mut tokens = model.vocab().tokenize(&super::bodies::text(), crate::engine::Special::Text);
    tokens.truncate(N_PREFILL);
    thread::scope(|scope| {
        let measured = thread::Builder::new().name("hob-bench-engine".to_owned()).spawn_scoped(scope, || {
            let mut engine = model.open(&options)?;
            let paces: Result<Vec<Pace>, BenchError> = (0..=n_runs).map(|_| run(&mut engine, &tokens)).collect();
            paces.map(|mut paces| paces.split_off(1))
        })?;
        measured.join().unwrap_or_else(|_| Err(BenchError::Answer("the engine's thread panicked".to_owned())))
    })
}

/// How long the K/V of `N_PREFILL` tokens takes out of the cells, and back into others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Copied {
    pub(super) n_bytes: usize,
    pub(super) save: Duration,
    pub(super) restore: Duration,
}

/// Measures `n_runs` times, in pieces as the daemon does, after one run that is not counted.
pub(super) fn copied<M: Model>(model: &M, options: &ContextOptions, n_runs: usize) -> Result<Vec<Copied>, BenchError> {
    let mut engine = model.open(&ContextOptions { n_cells: 2 * CHUNK, n_seq_max: 2, ..options.clone() })?;
    let mut tokens = model.vocab().tokenize(&super::bodies::text(), crate::engine::Special::Text);
    tokens.truncate(N_PREFILL);
    compute(&mut engine, SeqId(0), &tokens, 0, true)?;
    let limits = engine.limits();
    let n_piece = if limits.memory == Memory::Rewindable { limits.n_piece_max } else { tokens.len() };
    let ranges: Vec<_> =
        (0..tokens.len()).step_by(n_piece).map(|start| start..tokens.len().min(start + n_piece)).collect();
    let mut measured = Vec::with_capacity(n_runs + 1);
    for _ in 0..=n_runs {
        let started = Instant::now();
        let saved = ranges.iter().map(|range| engine.save(SeqId(0), range.clone())).collect::<Result<Vec<_>, _>>()?;
        let save = started.elapsed();
        let started = Instant::now();
        for (range, bytes) in ranges.iter().zip(&saved) {
            engine.restore(SeqId(1), range.clone(), bytes)?;
        }
        let restore = started.elapsed();
        engine.remove(SeqId(1), 0)?;
        measured.push(Copied { n_bytes: saved.iter().map(Vec::len).sum(), save, restore });
    }
    Ok(measured.split_off(1))
}

fn run(engine: &mut impl Engine, tokens: &[Token]) -> Result<Pace, BenchError> {
    let mut sampler =
        engine.sampler(&Sampling { temperature: 0.0, ..Sampling::default() }, &AnswerRules::default(), tokens)?;
    let started = Instant::now();
    let mut row = compute(engine, SeqId(0), tokens, 0, true)?;
    let prefill = started.elapsed();
    let started = Instant::now();
    for pos in (tokens.len()..).take(N_DECODE) {
        let token = engine.sample(row, &mut sampler)?;
        engine.decode(&Batch { tokens: vec![BatchToken { token, pos, seq: SeqId(0), wants_logits: true }] })?;
        row = 0;
    }
    engine.logits(row)?;
    let decode = started.elapsed();
    engine.remove(SeqId(0), 0)?;
    Ok(Pace { prefill, decode })
}
