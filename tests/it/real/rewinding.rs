//! Going back in models whose state goes forward only: bit for bit what a sequence that never went further says.

use hob::engine::llama::LlamaEngine;
use hob::engine::{Batch, BatchToken, ContextOptions, Engine, KvType, MemoryClass, Model, SeqId, Threads};
use hob::request::Token;

use super::house::{load, text};
use super::solo::max_delta;
use super::tiny;

const TEMPLATE: &str = "{{ messages[0].content }}";

const TALK: SeqId = SeqId(0);

const OTHER: SeqId = SeqId(1);

fn options() -> ContextOptions {
    ContextOptions { n_cells: 1024, n_seq_max: 3, n_batch: 256, kv_type: KvType::F16, threads: Threads::same(2) }
}

/// Behind what `seq` holds.
fn decode(engine: &mut LlamaEngine, seq: SeqId, tokens: &[Token]) -> Vec<f32> {
    let start = engine.held(seq).map_or(0, |held| held.end);
    let row = |(i, &token)| BatchToken { token, pos: start + i, seq, wants_logits: i + 1 == tokens.len() };
    engine.decode(&Batch { tokens: tokens.iter().enumerate().map(row).collect() }).unwrap();
    engine.logits(tokens.len() - 1).unwrap().to_vec()
}

#[test]
fn a_rewound_sequence_goes_on_as_one_that_never_went_further() {
    for file in [tiny::mamba(), tiny::jamba()] {
        let model = load(file.path(), Some(TEMPLATE));
        let name = model.facts().architecture.clone();
        assert_eq!(model.memory_class(), MemoryClass::Checkpointed);
        let (house, answer, question) =
            (text(&model, "House", 300), text(&model, "Answer", 40), text(&model, "Why", 30));
        for at in [1, 2, 63, 64, 65, 255, 256] {
            let mut engine = model.open(&options()).unwrap();
            decode(&mut engine, TALK, &house[..at]);
            let checkpoint = engine.checkpoint(TALK).unwrap();
            let whole = engine.save(TALK, 0..at).unwrap();
            assert!(checkpoint.len() <= whole.len(), "{name}: the part is not larger than the whole");
            decode(&mut engine, TALK, &answer);
            // Another conversation beside it, and a token of each in turn, as while both decode.
            decode(&mut engine, OTHER, &answer);
            for &token in &question[..5] {
                decode(&mut engine, TALK, &[token]);
                decode(&mut engine, OTHER, &[token]);
            }
            let beside = engine.save(OTHER, 0..45).unwrap();
            // Twice: a checkpoint can be gone back to again, and to where one stands.
            for _ in 0..2 {
                engine.rewind(TALK, at, &checkpoint).unwrap();
                assert_eq!(engine.held(TALK).unwrap().end, at);
                assert!(engine.save(TALK, 0..at).unwrap() == whole, "{name}: bytes at {at}");
                assert!(engine.checkpoint(TALK).unwrap() == checkpoint);
                engine.rewind(TALK, at, &checkpoint).unwrap();
                let said = decode(&mut engine, TALK, &question);
                let mut alone = model.open(&options()).unwrap();
                decode(&mut alone, TALK, &house[..at]);
                assert_eq!(max_delta(&said, &decode(&mut alone, TALK, &question)), 0.0, "{name} at {at}");
            }
            let end = engine.held(OTHER).unwrap().end;
            assert!(engine.save(OTHER, 0..end).unwrap() == beside, "{name}: the other one was touched");
        }
    }
}

#[test]
fn a_checkpoint_is_the_state_alone_and_does_not_grow_with_the_conversation() {
    let model = load(tiny::jamba().path(), Some(TEMPLATE));
    let tokens = text(&model, "House", 400);
    let mut engine = model.open(&options()).unwrap();
    let mut sizes = Vec::new();
    for part in tokens.chunks(200) {
        decode(&mut engine, TALK, part);
        let end = engine.held(TALK).unwrap().end;
        sizes.push((engine.checkpoint(TALK).unwrap().len(), engine.save(TALK, 0..end).unwrap().len()));
    }
    assert_eq!(sizes[0].0, sizes[1].0);
    let n_kv = model.facts().kv_bytes_per_token(KvType::F16) as usize;
    assert!(sizes[1].1 - sizes[1].0 >= 400 * n_kv, "K and V are not in it: {sizes:?}");
}

#[test]
fn what_cannot_be_gone_back_to_is_refused_and_changes_nothing() {
    for file in [tiny::mamba(), tiny::jamba()] {
        let model = load(file.path(), Some(TEMPLATE));
        let tokens = text(&model, "House", 60);
        let mut engine = model.open(&options()).unwrap();
        engine.checkpoint(TALK).unwrap_err();
        decode(&mut engine, TALK, &tokens[..40]);
        let checkpoint = engine.checkpoint(TALK).unwrap();
        let whole = engine.save(TALK, 0..40).unwrap();
        decode(&mut engine, TALK, &tokens[40..50]);
        for to in [0, 39, 41, 50, 51, usize::MAX] {
            engine.rewind(TALK, to, &checkpoint).unwrap_err();
        }
        for n in 0..checkpoint.len() {
            engine.rewind(TALK, 40, &checkpoint[..n]).unwrap_err();
        }
        engine.rewind(TALK, 40, &[&checkpoint[..], &[0; 4]].concat()).unwrap_err();
        engine.rewind(OTHER, 40, &checkpoint).unwrap_err();
        engine.rewind(SeqId(99), 40, &checkpoint).unwrap_err();
        engine.checkpoint(SeqId(99)).unwrap_err();
        assert_eq!((engine.held(TALK).unwrap().end, engine.held(OTHER)), (50, None));
        engine.rewind(TALK, 40, &checkpoint).unwrap();
        assert!(engine.save(TALK, 0..40).unwrap() == whole);
    }
    // Others have no such part, or it was never proved.
    for file in [tiny::qwen3(), tiny::gemma("gemma2")] {
        let model = load(file.path(), Some(TEMPLATE));
        let mut engine = model.open(&options()).unwrap();
        decode(&mut engine, TALK, &text(&model, "House", 10));
        engine.checkpoint(TALK).unwrap_err();
        engine.rewind(TALK, 5, &[0; 40]).unwrap_err();
    }
}
