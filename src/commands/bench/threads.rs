//! Which number of threads is best here, with the machine quiet and with somebody else at work.
//!
//! *Busy* means that one more thread of this process computes all the time. The kernel shares processors among threads, so it
//! stands for a busy process of the same session and control group; one of another shares by the groups' weights. How llama.cpp's
//! threads wait for each other is as the environment says; to compare, run it again with another one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde::Serialize;

use super::engine::{Pace, pace};
use super::{BenchError, median, milliseconds, say};
use crate::engine::{ContextOptions, Model};

/// Runs of each row. With spinning threads beside a busy one the worst of a few is what a house notices.
const N_RUNS: usize = 5;

/// One number of threads, quiet or busy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ThreadRow {
    pub threads: usize,
    pub is_busy: bool,
    /// Whether hob is configured with this number.
    pub is_configured: bool,
    pub prefill_ms: f64,
    pub prefill_worst_ms: f64,
    pub decode_ms: f64,
    pub decode_worst_ms: f64,
}

/// Measures 1 to `n_max` threads.
pub(super) fn measure<M: Model>(
    model: &M,
    options: &ContextOptions,
    n_max: usize,
) -> Result<Vec<ThreadRow>, BenchError> {
    let mut rows = Vec::new();
    for is_busy in [false, true] {
        for threads in 1..=n_max {
            say(&format!("{threads} thread(s), {}", if is_busy { "one busy thread beside" } else { "quiet" }));
            let measured = || pace(model, options, threads, N_RUNS);
            let paces = if is_busy { beside_a_busy_thread(measured)? } else { measured()? };
            rows.push(row(threads, is_busy, threads == options.n_threads, &paces));
        }
    }
    Ok(rows)
}

fn row(threads: usize, is_busy: bool, is_configured: bool, paces: &[Pace]) -> ThreadRow {
    let worst = |of: fn(&Pace) -> _| milliseconds(paces.iter().map(of).max().unwrap_or_default());
    let usual = |of: fn(&Pace) -> _| milliseconds(median(paces.iter().map(of).collect()));
    ThreadRow {
        threads,
        is_busy,
        is_configured,
        prefill_ms: usual(|pace| pace.prefill),
        prefill_worst_ms: worst(|pace| pace.prefill),
        decode_ms: usual(|pace| pace.decode),
        decode_worst_ms: worst(|pace| pace.decode),
    }
}

fn beside_a_busy_thread<T>(measure: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let measured = measure();
        is_over.store(true, Ordering::Relaxed);
        measured
    })
}
