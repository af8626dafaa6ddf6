//! LoRA adapters on the real engine: each set computes K/V and logits of its own, equal bit for bit whatever was computed before
//! it, and what one set computed is reused under it alone.

use std::sync::Arc;

use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::{
    Batch, BatchToken, ContextOptions, Engine, EngineError, Gpu, GpuLayers, KvType, Model, SeqId, Threads,
};
use hob::request::{AdapterSet, MissCause, Scale, Token};

use super::house::{ALICE, BOB, House, Setup, prompt, text};
use super::solo::max_delta;
use super::tiny;

const TEMPLATE: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";
const WEIGHTS: Weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };

/// A tiny model with two adapters.
fn model() -> Arc<LoadedModel> {
    let (base, adapters) = (tiny::qwen3(), [tiny::adapter(5), tiny::adapter(6)]);
    let paths = adapters.each_ref().map(|adapter| adapter.path().to_owned());
    let model = LoadedModel::load(base.path(), WEIGHTS, Some(TEMPLATE), |_| {}).unwrap();
    Arc::new(model.with_adapters(&paths).unwrap())
}

fn options() -> ContextOptions {
    ContextOptions { n_cells: 512, n_seq_max: 4, n_batch: 128, kv_type: KvType::F16, threads: Threads::same(1) }
}

fn set(scales: &[f32]) -> AdapterSet {
    let scales = scales.iter().enumerate();
    scales.fold(AdapterSet::NONE, |set, (index, scale)| set.with(index, Scale::new(*scale).unwrap()))
}

/// Logits behind `tokens`, computed at once by a sequence of their own under `adapters`, and its state.
fn compute(engine: &mut impl Engine, adapters: AdapterSet, tokens: &[Token]) -> (Vec<f32>, Vec<u8>) {
    let (seq, n) = (SeqId(1), tokens.len());
    engine.set_adapters(adapters).unwrap();
    let token = |(pos, &token)| BatchToken { token, pos, seq, wants_logits: pos + 1 == n };
    engine.decode(&Batch { tokens: tokens.iter().enumerate().map(token).collect() }).unwrap();
    let computed = (engine.logits(n - 1).unwrap().to_vec(), engine.state(seq).unwrap());
    engine.remove(seq, 0).unwrap();
    computed
}

#[test]
fn each_set_has_logits_of_its_own_and_no_scale_leaves_the_model_as_it_is() {
    let model = model();
    let tokens = text(&model, "House", 60);
    let mut engine = model.open(&options()).unwrap();
    let sets = [set(&[]), set(&[1.0]), set(&[0.5]), set(&[0.0, 1.0]), set(&[1.0, 1.0]), set(&[-1.0, 0.5])];
    let first: Vec<_> = sets.iter().map(|&adapters| compute(&mut engine, adapters, &tokens)).collect();
    for (index, (logits, state)) in first.iter().enumerate() {
        for (other_logits, other_state) in &first[..index] {
            assert!(max_delta(logits, other_logits) > 0.01, "{:?}", sets[index]);
            assert_ne!(state, other_state, "{:?}", sets[index]);
        }
    }
    // Whatever was in force before, and in a context where nothing ever was.
    for index in [0, 4, 1, 5, 3, 2, 0] {
        assert!(compute(&mut engine, sets[index], &tokens) == first[index], "{:?}", sets[index]);
        let mut fresh = model.open(&options()).unwrap();
        assert!(compute(&mut fresh, sets[index], &tokens) == first[index], "{:?}", sets[index]);
    }
    let bare = LoadedModel::load(tiny::qwen3().path(), WEIGHTS, Some(TEMPLATE), |_| {}).unwrap();
    let mut without = bare.open(&options()).unwrap();
    assert!(compute(&mut without, set(&[]), &tokens) == first[0], "adapters that do not count change nothing");
    assert!(compute(&mut engine, set(&[0.0, -0.0]), &tokens) == first[0]);
}

#[test]
fn an_adapter_that_was_not_loaded_is_refused_and_changes_nothing() {
    let model = model();
    let tokens = text(&model, "House", 20);
    let mut engine = model.open(&options()).unwrap();
    let expected = compute(&mut engine, set(&[1.0]), &tokens);
    let error = engine.set_adapters(set(&[0.0, 0.0, 1.0])).unwrap_err();
    assert_eq!(error.to_string(), "there is no adapter 2: 2 were loaded with the model");
    let token = |(pos, &token)| BatchToken { token, pos, seq: SeqId(0), wants_logits: pos + 1 == tokens.len() };
    engine.decode(&Batch { tokens: tokens.iter().enumerate().map(token).collect() }).unwrap();
    assert!(engine.logits(tokens.len() - 1).unwrap() == expected.0, "the set before is still in force");
}

#[test]
fn an_adapter_of_another_model_ends_the_load_with_a_reason() {
    let adapter = tiny::adapter(5);
    let refused = |base: &tempfile::NamedTempFile, path: &std::path::Path| {
        let model = LoadedModel::load(base.path(), WEIGHTS, Some(TEMPLATE), |_| {}).unwrap();
        match model.with_adapters(&[path.to_owned()]) {
            Err(EngineError::Adapter { path: told, reason }) => {
                assert_eq!(told, path.display().to_string());
                reason
            }
            other => panic!("{:?}", other.err()),
        }
    };
    let shape = refused(&tiny::qwen3_with_heads_of(16), adapter.path());
    assert!(shape.contains("incorrect shape"), "{shape}");
    let architecture = refused(&tiny::gemma("gemma3"), adapter.path());
    assert_eq!(architecture, "was made for the architecture \"qwen3\", the model's is \"gemma3\"");
    let model = tiny::qwen3();
    assert_eq!(refused(&model, model.path()), "is no adapter: its general.type is another, or none");
    // Cut anywhere, its header tells, or llama.cpp does.
    let bytes = std::fs::read(adapter.path()).unwrap();
    for n_bytes in (0..bytes.len()).step_by(997) {
        let cut = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(cut.path(), &bytes[..n_bytes]).unwrap();
        assert_ne!(refused(&model, cut.path()), "", "{n_bytes} bytes");
    }
}

/// Questions to one policy under several sets, one after the other and in turns: the policy is computed once for each set, and each
/// logit that was used is that of a house that knows one set alone.
#[test]
fn a_shared_beginning_is_reused_under_its_own_set_with_the_logits_of_a_cold_run_and_under_no_other() {
    let model = model();
    // From 64 rows on llama.cpp adds in tiles, and cells of others between one's own would move their borders.
    let (policy, n_policy) = (text(&model, "House", 60), 60);
    // Behind the blank that every text begins with, in three bytes.
    let questions = ["Kitchen", "Attic", "Cellar"].map(|name| text(&model, name, 23)[3..].to_vec());
    let sets = [set(&[]), set(&[1.0]), set(&[0.5, 1.0])];
    let house = House::of(&model, Setup::default());
    for (turn, question) in questions.iter().enumerate() {
        for (index, &adapters) in sets.iter().enumerate() {
            house.set_adapters(adapters);
            // Of another length each time, so that the log has one row for it.
            let asked = prompt(&[&policy, &question[..20 - index]]);
            let answer = house.ask(ALICE, &asked, 12);
            let expected = match (turn, index) {
                (0, 0) => (0, MissCause::Cold),
                (0, _) => (0, MissCause::Adapter),
                // The question alone is too short to be told of.
                (_, _) => (n_policy, MissCause::Appended),
            };
            assert_eq!((answer.n_cached(), answer.done.cache.cause), expected, "question {turn}, {adapters:?}");
            let logits = house.log.row(&asked.tokens).logits;
            for &other in &sets {
                let cold = House::of(&model, Setup::default());
                cold.set_adapters(other);
                let alone = cold.ask(ALICE, &asked, 12);
                let is_same = logits == cold.log.row(&asked.tokens).logits;
                assert_eq!(is_same, other == adapters, "question {turn} under {adapters:?} and alone under {other:?}");
                assert!(other != adapters || answer.text == alone.text, "question {turn}, {adapters:?}");
            }
        }
    }
    assert_eq!(house.rest().n_adapter_switches, 3 * 3 - 1);
}

/// Two clients under two sets, decoding side by side: they take turns, and neither hears of the other's adapters.
#[test]
fn answers_under_different_sets_that_run_at_once_are_those_of_each_alone() {
    let model = model();
    let asked = prompt(&[&text(&model, "House", 70), &text(&model, "Kitchen", 20)]);
    let sets = [set(&[1.0]), set(&[0.0, 1.0])];
    let house = House::of(&model, Setup::default());
    house.step(0);
    let receivers = [(ALICE, sets[0]), (BOB, sets[1])].map(|(owner, adapters)| {
        house.set_adapters(adapters);
        house.submit(owner, &asked, 40)
    });
    house.log.open_gate();
    for (receiver, adapters) in receivers.into_iter().zip(sets) {
        let cold = House::of(&model, Setup::default());
        cold.set_adapters(adapters);
        assert_eq!(super::house::answer(receiver).text, cold.ask(ALICE, &asked, 40).text);
    }
    assert!(house.rest().n_adapter_switches >= 2, "each came into force");
}
