//! The faults are there, and wrong reuse changes what is said.

use super::super::{BatchToken, Threads};
use super::*;

fn open(attention: Attention, n_cells: usize) -> SimulatedEngine {
    let options = ContextOptions {
        n_cells,
        n_seq_max: 4,
        n_batch: 64,
        kv_type: super::super::KvType::F16,
        threads: Threads::same(1),
    };
    SimulatedModel::new().attention(attention).open(&options).unwrap()
}

fn decode(engine: &mut SimulatedEngine, seq: u16, text: &str) -> Result<Vec<f32>, DecodeError> {
    let from = engine.held(SeqId(seq)).map_or(0, |held| held.end);
    let tokens = text.bytes().enumerate().map(|(i, byte)| BatchToken {
        token: Token(byte.into()),
        pos: from + i,
        seq: SeqId(seq),
        wants_logits: i + 1 == text.len(),
    });
    engine.decode(&Batch { tokens: tokens.collect() })?;
    Ok(engine.logits(text.len() - 1).unwrap().to_vec())
}

#[test]
fn a_shared_prefix_says_what_a_cold_one_says() {
    let mut engine = open(Attention::Full, 64);
    let cold = decode(&mut engine, 0, "the same prompt").unwrap();
    engine.share(SeqId(0), SeqId(1), 0..9).unwrap();
    assert_eq!(decode(&mut engine, 1, "prompt").unwrap(), cold);
    assert_eq!(engine.n_free(), 64 - 15 - 6);
}

#[test]
fn a_wrong_prefix_changes_the_answer() {
    let mut engine = open(Attention::Full, 64);
    let cold = decode(&mut engine, 0, "one prompt").unwrap();
    decode(&mut engine, 1, "two prompt").unwrap();
    engine.share(SeqId(1), SeqId(2), 0..4).unwrap();
    assert_ne!(decode(&mut engine, 2, "prompt").unwrap(), cold);
}

#[test]
fn a_full_context_refuses_the_batch_and_stays_usable() {
    let mut engine = open(Attention::Full, 8);
    decode(&mut engine, 0, "123456").unwrap();
    assert!(matches!(decode(&mut engine, 1, "abc"), Err(DecodeError::NoFreeCells { n_tokens: 3 })));
    assert_eq!(engine.n_free(), 2);
    engine.remove(SeqId(0), 3).unwrap();
    decode(&mut engine, 1, "abc").unwrap();
}

#[test]
fn a_window_recycles_cells_of_one_owner_and_spares_those_of_two() {
    let mut engine = open(Attention::Window(4), 10);
    decode(&mut engine, 0, "12345678").unwrap();
    decode(&mut engine, 1, "abcd").unwrap();
    assert_eq!(engine.held(SeqId(0)), Some(2..8), "the old cells of an idle sequence are gone, silently");
    let mut engine = open(Attention::Window(4), 10);
    decode(&mut engine, 0, "12345678").unwrap();
    engine.share(SeqId(0), SeqId(3), 0..8).unwrap();
    assert!(decode(&mut engine, 1, "abcd").is_err());
    assert_eq!(engine.held(SeqId(0)), Some(0..8));
}

#[test]
fn a_window_saved_late_restores_as_a_success_with_cells_missing() {
    let mut engine = open(Attention::Window(4), 32);
    decode(&mut engine, 0, "12345678").unwrap();
    engine.copy_whole(SeqId(0), SeqId(1)).unwrap();
    assert_eq!(engine.held(SeqId(1)), Some(4..8));
}

#[test]
fn a_recurrent_memory_refuses_a_cut_and_shares_the_wrong_state() {
    let mut engine = open(Attention::Recurrent, 32);
    let cold = decode(&mut engine, 0, "prefix and").unwrap();
    assert!(engine.remove(SeqId(0), 6).is_err());
    engine.share(SeqId(0), SeqId(1), 0..6).unwrap();
    assert_eq!(engine.held(SeqId(1)), Some(9..10), "the latest state, not the one at position 6");
    engine.remove(SeqId(0), 0).unwrap();
    assert_eq!(decode(&mut engine, 0, "prefix and").unwrap(), cold);
}

#[test]
fn bad_ids_and_gaps_are_errors() {
    let mut engine = open(Attention::Full, 32);
    assert!(engine.share(SeqId(0), SeqId(9), 0..1).is_err());
    assert!(engine.remove(SeqId(4), 0).is_err());
    let gap = BatchToken { token: Token(1), pos: 3, seq: SeqId(0), wants_logits: false };
    assert!(engine.decode(&Batch { tokens: vec![gap] }).is_err());
    assert!(engine.logits(0).is_err());
}
