//! The engine where sequences cannot be cut: whole ones only, by copy.

use hob::engine::{Batch, BatchToken, ContextOptions, Engine, KvType, Memory, Model, SeqId, Threads};

use super::house::{load, text};
use super::tiny;

#[test]
fn what_is_not_proved_to_be_cut_shares_and_cuts_whole_sequences_only() {
    for file in [tiny::gemma("gemma2"), tiny::mamba(), tiny::jamba()] {
        let model = load(file.path(), Some("{{ messages[0].content }}"));
        let name = &model.facts().architecture;
        let options = ContextOptions {
            n_cells: 1024,
            n_seq_max: 4,
            n_batch: 256,
            kv_type: KvType::F16,
            threads: Threads::same(1),
        };
        let mut engine = model.open(&options).unwrap();
        assert_eq!(engine.limits().memory, Memory::Opaque);
        let tokens = text(&model, "House", 120);
        let compute = |engine: &mut hob::engine::llama::LlamaEngine, seq, from: usize, to: usize| {
            let row = |pos| BatchToken { token: tokens[pos], pos, seq, wants_logits: pos + 1 == to };
            engine.decode(&Batch { tokens: (from..to).map(row).collect() }).unwrap();
            engine.logits(to - from - 1).unwrap().to_vec()
        };
        let [source, copy, empty] = [0, 1, 2].map(SeqId);
        compute(&mut engine, source, 0, 100);
        engine.share(source, copy, 0..100).unwrap_err();
        engine.remove(source, 60).unwrap_err();
        engine.remove(source, 100).unwrap();
        engine.copy_whole(empty, copy).unwrap_err();
        engine.copy_whole(source, copy).unwrap();
        engine.copy_whole(source, copy).unwrap_err();
        // Both go on from there, behind the window.
        let expected = compute(&mut engine, source, 100, 120);
        assert!(compute(&mut engine, copy, 100, 120) == expected, "{name}");
        engine.remove(source, 0).unwrap();
        assert_eq!((engine.held(source), engine.held(copy).unwrap().end), (None, 120), "{name}");
        engine.copy_whole(copy, copy).unwrap_err();
    }
}
