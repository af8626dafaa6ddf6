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

/// Saved in pieces and restored into another engine, then continued.
#[test]
fn what_was_saved_and_restored_says_what_a_cold_one_says() {
    let mut engine = open(Attention::Full, 64);
    let cold = decode(&mut engine, 0, "the same prompt").unwrap();
    let pieces = [0..4, 4..9].map(|range| (range.clone(), engine.save(SeqId(0), range).unwrap()));
    let mut later = open(Attention::Full, 64);
    for (range, bytes) in &pieces {
        later.restore(SeqId(2), range.clone(), bytes).unwrap();
    }
    assert_eq!((later.held(SeqId(2)), later.n_free()), (Some(0..9), 64 - 9));
    assert_eq!(decode(&mut later, 2, "prompt").unwrap(), cold);
    assert_eq!(later.save(SeqId(2), 0..4).unwrap(), pieces[0].1);
    // Beside a shared prefix: only what differs is restored.
    later.share(SeqId(2), SeqId(3), 0..4).unwrap();
    later.restore(SeqId(3), 4..9, &pieces[1].1).unwrap();
    assert_eq!(decode(&mut later, 3, "prompt").unwrap(), cold);
}

#[test]
fn bytes_behind_another_prefix_change_the_answer() {
    let mut engine = open(Attention::Full, 64);
    let cold = decode(&mut engine, 0, "one prompt").unwrap();
    let tail = engine.save(SeqId(0), 3..4).unwrap();
    decode(&mut engine, 1, "two").unwrap();
    engine.restore(SeqId(1), 3..4, &tail).unwrap();
    assert_ne!(decode(&mut engine, 1, "prompt").unwrap(), cold);
}

#[test]
fn a_restore_that_is_refused_changes_nothing() {
    let model = SimulatedModel::new();
    let options = ContextOptions {
        n_cells: 12,
        n_seq_max: 4,
        n_batch: 64,
        kv_type: super::super::KvType::F16,
        threads: Threads::same(1),
    };
    let mut engine = model.open(&options).unwrap();
    decode(&mut engine, 0, "12345678").unwrap();
    let bytes = engine.save(SeqId(0), 2..6).unwrap();
    engine.share(SeqId(0), SeqId(1), 0..2).unwrap();
    let (mut short, mut moved) = (bytes.clone(), bytes.clone());
    short.pop();
    moved[0] = 9;
    let cases = [(2..6, &short), (2..5, &bytes), (2..7, &bytes), (3..6, &bytes), (2..6, &moved), (2..2, &bytes)];
    for (range, bytes) in cases {
        assert!(engine.restore(SeqId(1), range.clone(), bytes).is_err(), "{range:?}");
    }
    assert!(engine.save(SeqId(0), 5..9).is_err());
    assert!(engine.save(SeqId(2), 0..1).is_err());
    model.faults().fail_next_saves(1);
    assert!(engine.save(SeqId(0), 2..6).is_err());
    model.faults().fail_next_restores(1);
    assert!(engine.restore(SeqId(1), 2..6, &bytes).is_err());
    model.faults().shorten_next_restores(1);
    assert!(engine.restore(SeqId(1), 2..6, &bytes).is_err(), "a success with cells missing is seen");
    assert_eq!((engine.held(SeqId(1)), engine.n_free()), (Some(0..2), 4));
    engine.restore(SeqId(1), 2..6, &bytes).unwrap();
    assert!(engine.restore(SeqId(2), 0..1, &[0; CELL_BYTES]).is_err(), "no cells are left");
    assert_eq!(engine.held(SeqId(2)), None);
}

#[test]
fn an_opaque_memory_is_saved_whole_and_at_its_end() {
    for attention in [Attention::Window(4), Attention::Recurrent] {
        let mut engine = open(attention, 32);
        decode(&mut engine, 0, "prefix").unwrap();
        assert!(engine.save(SeqId(0), 0..5).is_err());
        let bytes = engine.save(SeqId(0), 0..6).unwrap();
        let cold = decode(&mut engine, 0, " and").unwrap();
        engine.restore(SeqId(1), 0..6, &bytes).unwrap();
        assert!(engine.restore(SeqId(1), 0..6, &bytes).is_err());
        assert_eq!(decode(&mut engine, 1, " and").unwrap(), cold, "{attention:?}");
    }
}
