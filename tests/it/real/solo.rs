//! What a sequence computes alone: in a context of its own, its cells in a given order.
//!
//! Attention adds up in the order of the cells. A sequence whose cells were freed and taken again at several places has them
//! in another order than its positions, and its logits differ by what rounding makes of that. To compare bit for bit, the
//! solo run lays its cells in the same order: dummies fill the context, and each makes room when its place is due.

use std::ops::Range;
use std::sync::Arc;

use hob::engine::llama::{LlamaEngine, LoadedModel};
use hob::engine::{Batch, BatchToken, ContextOptions, Engine, KvType, Model, SeqId, Threads};
use hob::request::Token;

use super::recording::{Row, order_of};

const N_BATCH: usize = 256;

/// Logits behind each position of `wanted`, with the cells in `order`.
pub(super) fn solo(
    model: &Arc<LoadedModel>,
    kv_type: KvType,
    tokens: &[Token],
    order: &[usize],
    wanted: Range<usize>,
) -> Vec<Vec<f32>> {
    let runs = runs_of(order);
    let options = ContextOptions {
        n_cells: tokens.len(),
        n_seq_max: (runs.len() + 1).min(N_BATCH - 1),
        n_batch: N_BATCH,
        kv_type,
        threads: Threads::same(1),
    };
    let mut engine = model.open(&options).unwrap();
    let dummy = |run_idx: usize| SeqId(run_idx as u16 + 1);
    if runs.len() > 1 {
        for (run_idx, run) in runs.iter().enumerate() {
            compute(&mut engine, dummy(run_idx), &tokens[..run.len()], 0..run.len(), 0..0);
        }
    }
    let mut by_position: Vec<usize> = (0..runs.len()).collect();
    by_position.sort_by_key(|&run_idx| runs[run_idx].start);
    let mut logits = Vec::new();
    for run_idx in by_position {
        if runs.len() > 1 {
            engine.remove(dummy(run_idx), 0).unwrap();
        }
        logits.extend(compute(&mut engine, SeqId(0), tokens, runs[run_idx].clone(), wanted.clone()));
    }
    assert_eq!(order_of(&engine.state(SeqId(0)).unwrap()), order, "the cells lie as they were asked to");
    logits
}

/// What the model says to a prompt alone: the most likely tokens, never an end.
pub(super) fn solo_text(model: &Arc<LoadedModel>, kv_type: KvType, prompt: &[Token], max_tokens: usize) -> String {
    let options = ContextOptions {
        n_cells: prompt.len() + max_tokens,
        n_seq_max: 1,
        n_batch: N_BATCH,
        kv_type,
        threads: Threads::same(1),
    };
    let mut engine = model.open(&options).unwrap();
    let (vocab, mut tokens, mut said) = (model.vocab(), prompt.to_vec(), Vec::new());
    let mut n_past = 0;
    for _ in 0..max_tokens {
        let n = tokens.len();
        let logits = compute(&mut engine, SeqId(0), &tokens, n_past..n, n - 1..n).remove(0);
        n_past = n;
        let likely = (0..logits.len()).filter(|&id| !vocab.is_end(Token(id as i32)));
        let best = likely.max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap();
        tokens.push(Token(best as i32));
        vocab.piece(Token(best as i32), &mut said);
    }
    String::from_utf8_lossy(&said).into_owned()
}

/// Compares each row with a solo run of the same tokens with cells in the same order, bit for bit; the number of rows whose
/// cells were not in the order of their positions.
pub(super) fn assert_rows_equal_solo(model: &Arc<LoadedModel>, kv_type: KvType, mut rows: Vec<Row>) -> usize {
    let is_scattered = |row: &&Row| !row.order.is_sorted();
    let n_scattered = rows.iter().filter(is_scattered).count();
    rows.sort_by_key(|row| row.tokens.len());
    // The longest sequence first: one solo run answers for all rows on its way.
    while let Some(last) = rows.pop() {
        let is_on_way = |row: &Row| {
            let n = row.tokens.len();
            last.tokens.starts_with(&row.tokens) && last.order.iter().filter(|&&pos| pos < n).eq(&row.order)
        };
        let (mut on_way, others): (Vec<Row>, Vec<Row>) = rows.into_iter().partition(is_on_way);
        rows = others;
        on_way.push(last.clone());
        let first = on_way[0].tokens.len() - 1;
        let alone = solo(model, kv_type, &last.tokens, &last.order, first..last.tokens.len());
        for row in on_way {
            let n = row.tokens.len();
            let delta = max_delta(&row.logits, &alone[n - 1 - first]);
            assert!(
                row.logits == alone[n - 1 - first],
                "row behind {n} tokens, {} of its own in a batch of {}, {} runs of cells: off by {delta}",
                row.n_own,
                row.n_batch,
                runs_of(&row.order).len()
            );
        }
    }
    n_scattered
}

pub(super) fn max_delta(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The order as ranges of positions that follow each other.
fn runs_of(order: &[usize]) -> Vec<Range<usize>> {
    let runs = order.chunk_by(|a, b| a + 1 == *b);
    runs.map(|run| run[0]..run[0] + run.len()).collect()
}

fn compute(
    engine: &mut LlamaEngine,
    seq: SeqId,
    tokens: &[Token],
    range: Range<usize>,
    wanted: Range<usize>,
) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    for start in range.clone().step_by(N_BATCH) {
        let part = start..range.end.min(start + N_BATCH);
        let token = |pos| BatchToken { token: tokens[pos], pos, seq, wants_logits: wanted.contains(&pos) };
        let batch = Batch { tokens: part.map(token).collect() };
        engine.decode(&batch).unwrap();
        let rows = batch.tokens.iter().enumerate().filter(|(_, token)| token.wants_logits);
        logits.extend(rows.map(|(row, _)| engine.logits(row).unwrap().to_vec()));
    }
    logits
}
