//! Cells to bytes and back, with real models: what is restored into another context goes on bit for bit as what was saved.
//!
//! All prefixes are computed by one plan: a chunk ends at each cut, and every 256 tokens behind one. Questions are shorter than
//! the 64 tokens from which attention adds up in tiles of cells, so that cells of others in between do not move the sums.

use std::ops::Range;
use std::sync::Arc;

use hob::engine::llama::{LlamaEngine, LoadedModel};
use hob::engine::{Batch, BatchToken, ContextOptions, Engine, KvType, Memory, MemoryClass, Model, SeqId, Threads};
use hob::request::Token;

use super::house::{load, smollm2, text};
use super::solo::max_delta;
use super::tiny;
use crate::models;

const GEMMA: &str = "{% for m in messages %}{{ m.content }}{% endfor %}";

const CHUNK: usize = 256;

const PIN: SeqId = SeqId(0);

const OTHER: SeqId = SeqId(1);

/// A model, what it is asked, and how its context is opened.
struct Bench {
    model: Arc<LoadedModel>,
    tokens: Vec<Token>,
    question: Vec<Token>,
    /// Where chunks end beside every 256 tokens.
    cuts: Vec<usize>,
    options: ContextOptions,
}

impl Bench {
    fn new(model: &Arc<LoadedModel>, n_tokens: usize, cuts: &[usize], kv_type: KvType) -> Bench {
        let options =
            ContextOptions { n_cells: 2048, n_seq_max: 4, n_batch: CHUNK, kv_type, threads: Threads::same(2) };
        Bench {
            model: model.clone(),
            tokens: text(model, "House", n_tokens),
            question: text(model, "Kitchen", 30),
            cuts: cuts.to_vec(),
            options,
        }
    }

    fn open(&self) -> LlamaEngine<'_> {
        self.model.open(&self.options).unwrap()
    }

    /// Ends of the chunks of `tokens[..n]`.
    fn ends(&self, n: usize) -> Vec<usize> {
        let mut ends = Vec::new();
        let mut start = 0;
        while start < n {
            let cut = self.cuts.iter().copied().filter(|&cut| cut > start).min().unwrap_or(n);
            start = (start + CHUNK).min(cut).min(n);
            ends.push(start);
        }
        ends
    }

    fn compute(&self, engine: &mut LlamaEngine, seq: SeqId, n: usize) {
        let mut start = engine.held(seq).map_or(0, |held| held.end);
        for end in self.ends(n).into_iter().filter(|&end| end > start).collect::<Vec<usize>>() {
            decode(engine, seq, start, &self.tokens[start..end]);
            start = end;
        }
    }

    /// The logits behind the question asked after what `seq` holds, which holds the same afterwards where it can be cut.
    fn ask(&self, engine: &mut LlamaEngine, seq: SeqId) -> Vec<f32> {
        let end = engine.held(seq).map_or(0, |held| held.end);
        let logits = decode(engine, seq, end, &self.question);
        if engine.limits().memory == Memory::Rewindable {
            engine.remove(seq, end).unwrap();
        }
        logits
    }

    /// The logits behind the question after `n` tokens that were computed in a context of their own.
    fn cold(&self, n: usize) -> Vec<f32> {
        let mut engine = self.open();
        self.compute(&mut engine, PIN, n);
        self.ask(&mut engine, PIN)
    }
}

fn decode(engine: &mut LlamaEngine, seq: SeqId, start: usize, tokens: &[Token]) -> Vec<f32> {
    let row = |(index, &token): (usize, &Token)| BatchToken {
        token,
        pos: start + index,
        seq,
        wants_logits: index + 1 == tokens.len(),
    };
    engine.decode(&Batch { tokens: tokens.iter().enumerate().map(row).collect() }).unwrap();
    engine.logits(tokens.len() - 1).unwrap().to_vec()
}

/// All that `seq` holds, in pieces as large as the engine allows.
fn save(engine: &mut LlamaEngine, seq: SeqId) -> Vec<(Range<usize>, Vec<u8>)> {
    let end = engine.held(seq).unwrap().end;
    let step = engine.limits().n_piece_max;
    let ranges = (0..end).step_by(step).map(|start| start..end.min(start + step));
    ranges.map(|range| (range.clone(), engine.save(seq, range).unwrap())).collect()
}

fn restore(engine: &mut LlamaEngine, seq: SeqId, pieces: &[(Range<usize>, Vec<u8>)]) {
    for (range, bytes) in pieces {
        engine.restore(seq, range.clone(), bytes).unwrap();
    }
}

/// E1 and E2: bytes → another context → bytes are equal, and so is what is said to a question.
fn goes_on_after_a_restart(bench: &Bench, lengths: &[usize]) {
    for &n in lengths {
        let mut engine = bench.open();
        bench.compute(&mut engine, PIN, n);
        let pieces = save(&mut engine, PIN);
        let said = bench.ask(&mut engine, PIN);
        drop(engine);
        let mut later = bench.open();
        restore(&mut later, OTHER, &pieces);
        assert_eq!(later.held(OTHER).unwrap().end, n);
        assert!(save(&mut later, OTHER) == pieces, "bytes at {n}");
        assert!(bench.ask(&mut later, OTHER) == said, "logits at {n}: {}", bench.model.facts().architecture);
        assert!(said.iter().any(|logit| *logit != said[0]));
    }
}

#[test]
fn the_demo_model_goes_on_after_a_restart_at_every_edge() {
    let model = smollm2();
    for (kv_type, lengths) in [(KvType::F16, &[1, 255, 256, 257][..]), (KvType::Q8_0, &[257]), (KvType::Q4_0, &[65])] {
        goes_on_after_a_restart(&Bench::new(model, 300, &[], kv_type), lengths);
    }
}

/// A changed document replaces its own segment: restored beside a shared prefix, cut inside a segment.
#[test]
fn segments_are_saved_once_and_restored_beside_a_shared_prefix() {
    let bench = Bench::new(smollm2(), 120, &[30, 100], KvType::F16);
    let mut engine = bench.open();
    bench.compute(&mut engine, PIN, 120);
    let ranges = [0..30, 30..90, 90..100, 100..120];
    let pieces = ranges.map(|range| (range.clone(), engine.save(PIN, range).unwrap()));
    let per_token = |(range, bytes): &(Range<usize>, Vec<u8>)| bytes.len() as f64 / range.len() as f64;
    let n_kv = bench.model.facts().kv_bytes_per_token(KvType::F16) as f64;
    assert!(pieces.iter().all(|piece| per_token(piece) / n_kv < 1.01), "a segment is its own cells and no others");

    let mut later = bench.open();
    restore(&mut later, PIN, &pieces[..2]);
    later.share(PIN, OTHER, 0..30).unwrap();
    restore(&mut later, OTHER, &pieces[1..]);
    assert_eq!((later.held(PIN), later.held(OTHER)), (Some(0..90), Some(0..120)));
    assert!(bench.ask(&mut later, OTHER) == bench.cold(120));
    // A hit ends inside what was restored.
    later.remove(OTHER, 100).unwrap();
    assert!(bench.ask(&mut later, OTHER) == bench.cold(100));
}

/// What one checks first when bytes are wrong: nothing changes, and the engine goes on.
#[test]
fn bytes_that_do_not_fit_are_refused_and_change_nothing() {
    let files = [tiny::qwen3(), tiny::gemma("gemma3"), tiny::gemma("gemma2"), tiny::jamba(), tiny::mamba()];
    for file in files {
        let model = load(file.path(), Some(GEMMA));
        let bench = Bench::new(&model, 40, &[], KvType::F16);
        let mut engine = bench.open();
        bench.compute(&mut engine, PIN, 5);
        let bytes = engine.save(PIN, 0..5).unwrap();
        let name = &model.facts().architecture;
        for n in 0..bytes.len() {
            assert!(engine.restore(OTHER, 0..5, &bytes[..n]).is_err(), "{name}: cut at {n}");
        }
        assert!(engine.restore(OTHER, 0..5, &[&bytes[..], &[0; 4]].concat()).is_err(), "{name}: too long");
        for range in [0..4, 0..6, 1..6, 0..0] {
            assert!(engine.restore(OTHER, range.clone(), &bytes).is_err(), "{name}: {range:?}");
        }
        let mut n_accepted = 0;
        for at in 0..bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut flipped = bytes.clone();
                flipped[at] ^= flip;
                let is_accepted = engine.restore(OTHER, 0..5, &flipped).is_ok();
                n_accepted += usize::from(is_accepted);
                assert_eq!(engine.held(OTHER).map(|held| held.end), is_accepted.then_some(5), "{name}: byte {at}");
                engine.remove(OTHER, 0).unwrap();
            }
        }
        // Numbers of the cells and the two kinds of words that llama.cpp does not read.
        assert!(n_accepted > 0 && n_accepted < 3 * bytes.len(), "{name}");
        engine.restore(OTHER, 0..5, &bytes).unwrap();
        assert!(engine.save(OTHER, 0..5).unwrap() == bytes);
        let said = bench.ask(&mut engine, PIN);
        assert!(bench.ask(&mut engine, OTHER) == said, "{name}");
    }
}

#[test]
fn calls_out_of_range_are_refused_and_change_nothing() {
    let bench = Bench::new(smollm2(), 300, &[], KvType::F16);
    let mut engine = bench.open();
    bench.compute(&mut engine, PIN, 300);
    let piece = engine.save(PIN, 0..20).unwrap();
    for (seq, range) in
        [(PIN, 0..257), (PIN, 299..301), (PIN, 10..10), (OTHER, 0..1), (SeqId(4), 0..1), (SeqId(999), 0..1)]
    {
        engine.save(seq, range).unwrap_err();
    }
    for (seq, range) in [(PIN, 0..20), (OTHER, 1..21), (SeqId(4), 0..20), (OTHER, 0..20_000)] {
        engine.restore(seq, range, &piece).unwrap_err();
    }
    assert_eq!((engine.held(PIN), engine.held(OTHER)), (Some(0..300), None));
    // Saving lends cells to nobody for longer than it takes.
    engine.remove(PIN, 0).unwrap();
    let full = ContextOptions { n_cells: 256, ..bench.options.clone() };
    let mut engine = bench.model.open(&full).unwrap();
    bench.compute(&mut engine, PIN, 250);
    let error = engine.restore(OTHER, 0..20, &piece).unwrap_err().to_string();
    assert!(error.contains("cells"), "{error}");
    assert_eq!((engine.held(PIN), engine.held(OTHER)), (Some(0..250), None));
    engine.remove(PIN, 236).unwrap();
    engine.restore(OTHER, 0..20, &piece).unwrap();
}

#[test]
fn tiny_models_of_every_class_go_on_after_a_restart_at_every_edge() {
    let classes = [
        (tiny::qwen3(), MemoryClass::Rewindable),
        (tiny::gemma("gemma3"), MemoryClass::Guarded),
        (tiny::gemma("gemma2"), MemoryClass::Opaque),
        (tiny::mamba(), MemoryClass::Checkpointed),
        (tiny::jamba(), MemoryClass::Checkpointed),
    ];
    for (file, class) in classes {
        let model = load(file.path(), Some(GEMMA));
        assert_eq!(model.memory_class(), class);
        let (k, w) = (CHUNK, tiny::WINDOW);
        let lengths = [1, w - 1, w, w + 1, 2 * w + 1, 99, 100, 101, k - 1, k, k + 1, 100 + k - 1, 100 + k, 100 + k + 1];
        for kv_type in [KvType::F16, KvType::Q8_0] {
            goes_on_after_a_restart(&Bench::new(&model, 400, &[100], kv_type), &lengths);
        }
    }
}

/// A pin is branched at positions around its window, then once more after a restart.
fn branches_as_cold(bench: &Bench, branches: &[usize]) {
    let n_pin = bench.tokens.len();
    let mut engine = bench.open();
    bench.compute(&mut engine, PIN, n_pin);
    let pieces = save(&mut engine, PIN);
    let mut later = bench.open();
    restore(&mut later, PIN, &pieces);
    for &at in branches {
        let cold = bench.cold(at);
        for (when, engine) in [("before", &mut engine), ("after", &mut later)] {
            engine.share(PIN, OTHER, 0..at).unwrap();
            let delta = max_delta(&bench.ask(engine, OTHER), &cold);
            assert_eq!(delta, 0.0, "branched at {at}, {when} the restart");
            engine.remove(OTHER, 0).unwrap();
        }
    }
    // The pin itself can be cut as well.
    let at = branches[0];
    later.remove(PIN, at).unwrap();
    assert_eq!(max_delta(&bench.ask(&mut later, PIN), &bench.cold(at)), 0.0, "cut at {at}");
}

/// The pin lies idle while others use the cells up many times over: it says afterwards what it said before.
fn an_idle_pin_stays_whole(bench: &Bench, branches: &[usize], n_said: usize) {
    let n_pin = bench.tokens.len();
    let mut engine = bench.open();
    // The search for free cells begins at the first one: only from a gap in front of the pin it goes over the pin's cells.
    let gap = text(&bench.model, "Gap", 20);
    decode(&mut engine, SeqId(2), 0, &gap);
    bench.compute(&mut engine, PIN, n_pin);
    let asked = |engine: &mut LlamaEngine, at: usize| {
        engine.share(PIN, OTHER, 0..at).unwrap();
        let said = bench.ask(engine, OTHER);
        engine.remove(OTHER, 0).unwrap();
        said
    };
    let before: Vec<Vec<f32>> = branches.iter().map(|&at| asked(&mut engine, at)).collect();
    engine.remove(SeqId(2), 0).unwrap();
    for conversation in 0..50 {
        let seq = SeqId(1 + conversation % 3);
        engine.remove(seq, 0).unwrap();
        // Half of them stand on the pin.
        let n_shared = if conversation % 2 == 0 { bench.cuts[0] } else { 0 };
        if n_shared > 0 {
            engine.share(PIN, seq, 0..n_shared).unwrap();
        }
        let said = text(&bench.model, &format!("Guest {conversation}"), n_said);
        decode(&mut engine, seq, n_shared, &said);
        assert_eq!(engine.held(PIN), Some(0..n_pin), "beside {conversation} conversations");
    }
    (1..4).for_each(|seq| engine.remove(SeqId(seq), 0).unwrap());
    // The gap is closed as it was: attention adds in the order of cells, and questions lay behind the pin's.
    decode(&mut engine, SeqId(2), 0, &gap);
    for (&at, before) in branches.iter().zip(&before) {
        assert_eq!(max_delta(&asked(&mut engine, at), before), 0.0, "branched at {at}");
    }
}

#[test]
fn a_tiny_windowed_pin_is_branched_anywhere_and_lies_idle_unharmed() {
    let model = load(tiny::gemma("gemma3").path(), Some(GEMMA));
    let w = tiny::WINDOW;
    let branches = [7, w - 1, w, w + 1, 45, 94];
    let mut bench = Bench::new(&model, 94, &branches, KvType::F16);
    assert_eq!(bench.open().limits().n_piece_max, w, "a piece is no longer than the window");
    branches_as_cold(&bench, &branches);
    bench.options.n_cells = 512;
    an_idle_pin_stays_whole(&bench, &branches, 110);
}

#[test]
fn models_gemma_goes_on_after_a_restart_at_every_edge() {
    let Some(path) = models::gemma() else { return };
    let model = load(&path, Some(GEMMA));
    assert_eq!(model.memory_class(), MemoryClass::Guarded);
    goes_on_after_a_restart(&Bench::new(&model, 800, &[], KvType::F16), &[255, 256, 257, 511, 512, 513, 768]);
    goes_on_after_a_restart(&Bench::new(&model, 800, &[], KvType::Q8_0), &[513]);
}

#[test]
fn models_a_pin_of_gemma_is_branched_anywhere() {
    let Some(path) = models::gemma() else { return };
    let branches = [100, 511, 512, 513, 700];
    branches_as_cold(&Bench::new(&load(&path, Some(GEMMA)), 1500, &branches, KvType::F16), &branches);
}

#[test]
fn models_an_idle_pin_of_gemma_stays_whole_beside_fifty_conversations() {
    let Some(path) = models::gemma() else { return };
    let branches = [100, 511, 512, 513, 700];
    let bench = Bench::new(&load(&path, Some(GEMMA)), 1500, &branches, KvType::F16);
    an_idle_pin_stays_whole(&bench, &branches, 120);
}
