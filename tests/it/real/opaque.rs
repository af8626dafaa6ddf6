//! The engine where sequences cannot be cut: whole ones only, by copy; and formats of K and V that it refuses.

use hob::commands::check::check;
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

#[test]
fn quantised_k_and_v_are_refused_by_check_where_the_engine_would_refuse_them() {
    let file = tiny::qwen3_with_heads_of(48);
    let model = load(file.path(), Some("{{ messages[0].content }}"));
    let options =
        ContextOptions { n_cells: 256, n_seq_max: 2, n_batch: 64, kv_type: KvType::Q8_0, threads: Threads::same(1) };
    let error = model.open(&options).err().unwrap().to_string();
    assert!(error.contains("block size 32"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let template = folder.path().join("template.jinja");
    std::fs::write(&template, "{{ messages[0].content }}").unwrap();
    for (kv_type, is_fine) in [("f16", true), ("q8_0", false), ("q4_0", false)] {
        let text = format!(
            "[model]\npath = {:?}\nkv_type = {kv_type:?}\nchat_template = {template:?}\ncontext = 1024\n",
            file.path()
        );
        std::fs::write(&config, text).unwrap();
        let faults = check(&config).faults;
        let told =
            faults.iter().any(|fault| fault.key == "model.kv_type" && fault.problem.contains("a head of K has 48"));
        assert_eq!(told, !is_fine, "{kv_type}: {faults:?}");
    }
}
