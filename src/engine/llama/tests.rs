//! What the engine promises, with real models: limits and refusals, exact sharing, honest failure.
//!
//! Bit equality needs more than equal tokens: attention adds up in the order of the *cells*. With f16 K/V and chunks of
//! 64 tokens or more it does so in tiles of 64 cells, so other cells in between move the logits (measured: by up to 0.9);
//! in smaller chunks, and with q8_0 in all, only the order counts: cells in front of the prefix, freed by another
//! sequence, move it (by 0.7), cells in between do not. So each test below says where its cells lie.

use std::ops::Range;
use std::sync::OnceLock;

use super::*;
use crate::engine::{AnswerRules, Batch, BatchToken, DecodeError, Engine, KvType, SeqId, Special, Threads};
use crate::request::{Sampling, Token};

#[path = "../../../tests/it/models.rs"]
pub(super) mod models;

const CHATML: &str =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}";

fn load(path: &Path) -> LoadedModel {
    LoadedModel::load(path, Weights::On { gpu: Gpu::Off, layers: GpuLayers::All }, Some(CHATML), |_| {}).unwrap()
}

fn smollm2() -> &'static LoadedModel {
    static MODEL: OnceLock<LoadedModel> = OnceLock::new();
    MODEL.get_or_init(|| load(&models::smollm2()))
}

fn options(kv_type: KvType) -> ContextOptions {
    ContextOptions { n_cells: 1024, n_seq_max: 4, n_batch: 256, kv_type, threads: Threads::same(1) }
}

fn open(model: &LoadedModel) -> LlamaEngine<'_> {
    model.open(&options(KvType::F16)).unwrap()
}

/// The first `n_tokens` of a text that does not repeat itself.
fn prompt(model: &LoadedModel, n_tokens: usize) -> Vec<Token> {
    let text: String =
        (0..n_tokens).map(|n| format!("Room {n} is {} degrees warm, its lamp is off. ", n * 7 % 31)).collect();
    model.vocab().tokenize(&text, Special::Text)[..n_tokens].to_vec()
}

/// Positions `range` of `tokens` for `seq`; the last one has logits.
fn chunk(seq: u16, tokens: &[Token], range: Range<usize>) -> Batch {
    let tokens = range.clone().map(|pos| BatchToken {
        token: tokens[pos],
        pos,
        seq: SeqId(seq),
        wants_logits: pos + 1 == range.end,
    });
    Batch { tokens: tokens.collect() }
}

fn prefill(engine: &mut LlamaEngine, seq: u16, tokens: &[Token], range: Range<usize>) {
    let step = engine.limits().n_batch;
    for start in range.clone().step_by(step) {
        engine.decode(&chunk(seq, tokens, start..range.end.min(start + step))).unwrap();
    }
}

fn last_logits(engine: &LlamaEngine, batch: &Batch) -> Vec<f32> {
    engine.logits(batch.tokens.len() - 1).unwrap().to_vec()
}

/// Computes `range` in one batch of its own and gives the logits of its last token.
fn computed(engine: &mut LlamaEngine, seq: u16, tokens: &[Token], range: Range<usize>) -> Vec<f32> {
    let batch = chunk(seq, tokens, range);
    engine.decode(&batch).unwrap();
    last_logits(engine, &batch)
}

/// A sequence's state behind the words that name the sequence itself.
fn state(engine: &mut LlamaEngine, seq: u16, n_tokens: usize) -> Vec<u8> {
    let mut state = engine.state(SeqId(seq)).unwrap();
    let words = std::iter::once(4).chain((0..n_tokens).map(|cell| 16 + cell * 12 + 8));
    for word in words {
        assert_eq!(state[word..word + 4], u32::from(seq).to_le_bytes());
        state[word..word + 4].fill(0);
    }
    state
}

#[test]
fn the_header_gives_the_facts_of_the_formula() {
    let facts = read_facts(&models::smollm2()).unwrap();
    assert_eq!((facts.architecture.as_str(), &facts.kv_heads[..]), ("llama", &[3; 30][..]));
    assert_eq!((facts.k_head_size, facts.v_head_size, facts.width), (64, 64, 576));
    assert_eq!((facts.n_vocab, facts.n_context_train), (49_152, 8_192));
    assert_eq!(facts.kv_bytes_per_token(KvType::F16), 2 * 30 * 3 * 64 * 2);
    assert!(facts.weight_bytes > 90_000_000 && facts.weight_bytes < 98_362_432, "{}", facts.weight_bytes);
}

#[test]
fn files_that_are_no_model_are_refused_with_their_reason() {
    let bytes = std::fs::read(models::smollm2()).unwrap();
    let header = bytes[..4 << 20].to_vec();
    let mut other_architecture = bytes.clone();
    let at = bytes.windows(5).position(|window| window == b"llama").unwrap();
    other_architecture[at..at + 5].copy_from_slice(b"lllll");
    // Every key begins with the architecture's name.
    for at in 0..2 << 20 {
        if &bytes[at..at + 6] == b"llama." {
            other_architecture[at..at + 5].copy_from_slice(b"lllll");
        }
    }
    let cases: [(&str, &[u8], &str); 5] = [
        ("empty", b"", "is not a GGUF file"),
        ("text", b"hello", "is not a GGUF file"),
        ("cut in the header", &header[..1 << 20], "is cut off"),
        ("cut in the weights", &bytes[..bytes.len() - 100], "not within the file bounds"),
        ("another architecture", &other_architecture, "unknown model architecture: 'lllll'"),
    ];
    for (name, bytes, expected) in cases {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let error = LoadedModel::load(file.path(), Weights::None, None, |_| {}).err().unwrap().to_string();
        assert!(error.contains(expected), "{name}: {error}");
        assert!(error.starts_with(&format!("model {}: ", file.path().display())), "{name}: {error}");
    }
    let missing = LoadedModel::load(Path::new("/no/model.gguf"), Weights::None, None, |_| {}).err().unwrap();
    assert!(missing.to_string().contains("cannot be opened"), "{missing}");
}

#[test]
fn a_gpu_that_is_not_there_is_refused_when_required() {
    if has_gpu() {
        return;
    }
    let weights = Weights::On { gpu: Gpu::Required, layers: GpuLayers::All };
    let error = LoadedModel::load(&models::smollm2(), weights, None, |_| {}).err().unwrap().to_string();
    assert!(error.contains("no GPU"), "{error}");
}

#[test]
fn a_vocabulary_alone_tokenises_and_opens_no_engine() {
    let alone = LoadedModel::load(&models::smollm2(), Weights::None, Some(CHATML), |_| {}).unwrap();
    let text = "Küche: <|im_start|> 21 °C\n";
    for special in [Special::Parsed, Special::Text] {
        assert_eq!(alone.vocab().tokenize(text, special), smollm2().vocab().tokenize(text, special));
    }
    let error = alone.open(&options(KvType::F16)).err().unwrap().to_string();
    assert!(error.contains("without its weights"), "{error}");
}

#[test]
fn loading_tells_its_progress() {
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let progress = seen.clone();
    LoadedModel::load(&models::smollm2(), weights, Some(CHATML), move |done| progress.borrow_mut().push(done)).unwrap();
    let seen = seen.borrow();
    assert!(seen.len() > 2 && seen.is_sorted(), "{seen:?}");
    assert_eq!(seen.last(), Some(&1.0));
}

#[test]
fn the_vocabulary_keeps_bytes_and_knows_its_control_tokens() {
    let vocab = smollm2().vocab();
    let text = "Grüße 🏠 <|im_start|>\u{1}\0 & \"quoted\" 日本\n\n  x";
    let mut bytes = Vec::new();
    vocab.tokenize(text, Special::Text).into_iter().for_each(|token| vocab.piece(token, &mut bytes));
    assert_eq!(String::from_utf8(bytes).unwrap(), text);

    let control = |name: &str| vocab.control_tokens().iter().find(|(_, text)| text == name).map(|(token, _)| *token);
    let (start, end) = (control("<|im_start|>").unwrap(), control("<|im_end|>").unwrap());
    assert_eq!(vocab.tokenize("<|im_start|>", Special::Parsed), [start]);
    assert!(!vocab.tokenize("<|im_start|>", Special::Text).contains(&start));
    assert!(vocab.is_end(end) && !vocab.is_end(start) && !vocab.is_end(Token(-1)));
    assert_eq!(vocab.bos(), None);
    assert_eq!(vocab.n_tokens(), 49_152);

    let mut nothing = Vec::new();
    [start, end, Token(-1), Token(49_152)].into_iter().for_each(|token| vocab.piece(token, &mut nothing));
    assert!(nothing.is_empty());
}

#[test]
fn flash_attention_is_read_back_as_it_was_decided() {
    for (policy, expected) in [(sys::LLAMA_FLASH_ATTN_TYPE_ENABLED, true), (sys::LLAMA_FLASH_ATTN_TYPE_DISABLED, false)]
    {
        let engine = smollm2().open_with(&options(KvType::F16), policy).unwrap();
        assert_eq!(engine.limits().flash_attention, expected);
    }
    assert!(open(smollm2()).limits().flash_attention, "the CPU backend has flash attention");
    let error = smollm2().open_with(&options(KvType::Q8_0), sys::LLAMA_FLASH_ATTN_TYPE_DISABLED).err().unwrap();
    assert!(error.to_string().contains("quantized V cache"), "{error}");
}

#[test]
fn what_is_saved_is_bound_to_the_version_and_the_format_that_wrote_it() {
    let manifest = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml")).unwrap();
    assert!(manifest.contains(&format!("llama-cpp-sys-2 = {{ version = \"={LLAMA_CPP}\"")));
    let form = |kv_type| smollm2().open(&options(kv_type)).unwrap().saved_form();
    assert_eq!(
        form(KvType::F16),
        format!("llama-cpp-sys-2 {LLAMA_CPP}, cpu, kv f16, flash attention true, swa full true, rope short")
    );
    assert_ne!(form(KvType::F16), form(KvType::Q8_0));
}

#[test]
fn contexts_out_of_range_are_refused() {
    let fine = options(KvType::F16);
    let cases = [
        (ContextOptions { n_cells: 0, ..fine.clone() }, "0 cells"),
        (ContextOptions { n_seq_max: 0, ..fine.clone() }, "0 sequences"),
        (ContextOptions { n_seq_max: 256, n_batch: 512, ..fine.clone() }, "256 sequences: must be 1 to 255"),
        (ContextOptions { n_batch: 0, ..fine.clone() }, "0 tokens in a batch"),
        (ContextOptions { threads: Threads::same(0), ..fine.clone() }, "0 threads"),
    ];
    for (options, expected) in cases {
        let error = smollm2().open(&options).err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let options = ContextOptions { n_cells: 1000, n_seq_max: 255, n_batch: 3, ..fine };
    let limits = smollm2().open(&options).unwrap().limits();
    assert_eq!((limits.n_cells, limits.n_seq_max, limits.n_batch), (1024, 255, 3));
}

#[test]
fn bad_calls_are_errors_and_the_engine_works_afterwards() {
    let tokens = prompt(smollm2(), 40);
    let expected = computed(&mut open(smollm2()), 0, &tokens, 0..40);
    let mut engine = open(smollm2());
    prefill(&mut engine, 1, &tokens, 0..30);

    let bad_batches = [
        Batch::default(),
        Batch { tokens: chunk(0, &prompt(smollm2(), 300), 0..257).tokens },
        chunk(4, &tokens, 0..1),
        chunk(0, &tokens, 1..5),
        chunk(1, &tokens, 0..5),
        chunk(1, &tokens, 31..33),
        chunk(0, &[Token(-1)], 0..1),
        chunk(0, &[Token(49_152)], 0..1),
        Batch { tokens: [chunk(0, &tokens, 0..2).tokens, chunk(0, &tokens, 3..4).tokens].concat() },
        Batch { tokens: [chunk(0, &tokens, 0..2).tokens, chunk(0, &tokens, 1..2).tokens].concat() },
    ];
    for batch in &bad_batches {
        assert!(matches!(engine.decode(batch), Err(DecodeError::Failed(_))), "{batch:?}");
    }
    let mut sampler = engine.sampler(&Sampling::default(), &AnswerRules::default(), &tokens).unwrap();
    engine.logits(0).unwrap_err();
    engine.sample(0, &mut sampler).unwrap_err();

    engine.share(SeqId(1), SeqId(4), 0..10).unwrap_err();
    engine.share(SeqId(9), SeqId(0), 0..10).unwrap_err();
    engine.share(SeqId(1), SeqId(1), 0..10).unwrap_err();
    engine.share(SeqId(1), SeqId(0), 0..31).unwrap_err();
    engine.share(SeqId(1), SeqId(0), 5..5).unwrap_err();
    engine.share(SeqId(0), SeqId(2), 0..1).unwrap_err();
    engine.share(SeqId(1), SeqId(0), 0..10).unwrap();
    engine.share(SeqId(1), SeqId(0), 5..12).unwrap_err();
    engine.share(SeqId(1), SeqId(0), 11..12).unwrap_err();
    engine.share(SeqId(1), SeqId(0), 10..12).unwrap();
    assert_eq!(engine.held(SeqId(0)), Some(0..12));
    engine.remove(SeqId(4), 0).unwrap_err();
    engine.copy_whole(SeqId(1), SeqId(3)).unwrap_err();
    engine.state(SeqId(4)).unwrap_err();
    assert_eq!((engine.held(SeqId(4)), engine.held(SeqId(2))), (None, None));
    engine.remove(SeqId(2), 0).unwrap();
    engine.remove(SeqId(0), usize::MAX).unwrap();
    engine.remove(SeqId(0), 0).unwrap();
    engine.remove(SeqId(1), 0).unwrap();

    assert_eq!(computed(&mut engine, 0, &tokens, 0..40), expected);
    engine.logits(38).unwrap_err();
    engine.logits(40).unwrap_err();
    engine.sample(38, &mut sampler).unwrap_err();
    engine.sample(39, &mut sampler).unwrap();
}

#[test]
fn sampling_is_refused_where_it_would_abort_or_mislead() {
    let engine = open(smollm2());
    let fine = Sampling::default();
    let cases = [
        Sampling { temperature: f32::NAN, ..fine.clone() },
        Sampling { temperature: -1.0, ..fine.clone() },
        Sampling { top_p: 1.5, ..fine.clone() },
        Sampling { min_p: -0.1, ..fine.clone() },
        Sampling { repeat_penalty: 0.0, ..fine.clone() },
        Sampling { frequency_penalty: f32::INFINITY, ..fine.clone() },
        Sampling { presence_penalty: f32::NAN, ..fine.clone() },
        Sampling { logit_bias: vec![(Token(49_152), 1.0)], ..fine.clone() },
        Sampling { logit_bias: vec![(Token(1), f32::NEG_INFINITY)], ..fine.clone() },
    ];
    for sampling in cases {
        assert!(engine.sampler(&sampling, &AnswerRules::default(), &[]).is_err(), "{sampling:?}");
    }
    assert!(engine.sampler(&fine, &AnswerRules::default(), &[Token(-1)]).is_err());
}

#[test]
fn the_sampler_follows_its_settings() {
    let mut engine = open(smollm2());
    let tokens = prompt(smollm2(), 64);
    let batch = chunk(0, &tokens, 0..64);
    engine.decode(&batch).unwrap();
    let logits = last_logits(&engine, &batch);
    let best = Token((0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as i32);
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    let sample = |engine: &mut LlamaEngine, sampling: &Sampling, prompt: &[Token]| {
        let mut sampler = engine.sampler(sampling, &AnswerRules::default(), prompt).unwrap();
        (0..8).map(|_| engine.sample(63, &mut sampler).unwrap()).collect::<Vec<Token>>()
    };

    assert_eq!(sample(&mut engine, &greedy, &tokens), [best; 8]);
    let only = Sampling { top_k: 1, seed: Some(1), ..Sampling::default() };
    assert_eq!(sample(&mut engine, &only, &tokens), [best; 8]);
    let narrow = Sampling { top_p: 0.0, ..Sampling::default() };
    assert_eq!(sample(&mut engine, &narrow, &tokens), [best; 8]);
    let likely = Sampling { min_p: 1.0, ..Sampling::default() };
    assert_eq!(sample(&mut engine, &likely, &tokens), [best; 8]);

    let wanted = Token(4_711);
    let biased = Sampling { logit_bias: vec![(wanted, 1_000.0)], ..greedy.clone() };
    assert_eq!(sample(&mut engine, &biased, &tokens), [wanted; 8]);
    // The prompt's last tokens count: a penalty on what stands there is felt at once, and the sampler sees what it chose.
    let penalised = Sampling { presence_penalty: 1_000.0, ..greedy.clone() };
    let seen = [&tokens[..], &[best]].concat();
    let chosen = sample(&mut engine, &penalised, &seen);
    assert!(!seen[seen.len() - 64..].contains(&chosen[0]));
    assert!((1..8).all(|n| !chosen[..n].contains(&chosen[n])), "{chosen:?}");

    let hot = |seed| Sampling { temperature: 2.0, seed, ..Sampling::default() };
    for seed in [7, u32::MAX] {
        let first = sample(&mut engine, &hot(Some(seed)), &tokens);
        assert_eq!(sample(&mut engine, &hot(Some(seed)), &tokens), first);
    }
    assert_ne!(sample(&mut engine, &hot(Some(7)), &tokens), sample(&mut engine, &hot(Some(8)), &tokens));
    assert_ne!(sample(&mut engine, &hot(None), &tokens), sample(&mut engine, &hot(None), &tokens));
}

/// On f16: the prefix computed alone, shared, shared while it is computed, and after its leader is gone.
#[test]
fn a_shared_prefix_is_the_one_computed_alone() {
    let tokens = prompt(smollm2(), 380);
    let mut cold = open(smollm2());
    prefill(&mut cold, 0, &tokens, 0..300);
    let cold_state = state(&mut cold, 0, 300);
    let cold_logits = computed(&mut cold, 0, &tokens, 300..380);

    let mut engine = open(smollm2());
    prefill(&mut engine, 0, &tokens, 0..256);
    // Sequence 1 follows while the prefix is being computed, sequence 2 joins when it is done.
    engine.share(SeqId(0), SeqId(1), 0..256).unwrap();
    prefill(&mut engine, 0, &tokens, 256..300);
    engine.share(SeqId(0), SeqId(1), 256..300).unwrap();
    engine.share(SeqId(0), SeqId(2), 0..300).unwrap();
    for seq in 0..3 {
        assert_eq!(engine.held(SeqId(seq)), Some(0..300));
        assert!(state(&mut engine, seq, 300) == cold_state, "state of sequence {seq}");
    }
    // The leader goes; the prefix stays as long as anybody owns it.
    engine.remove(SeqId(0), 0).unwrap();
    for seq in [1, 2] {
        assert!(computed(&mut engine, seq, &tokens, 300..380) == cold_logits, "logits of sequence {seq}");
        // The next one computes into the same cells.
        engine.remove(SeqId(seq), 300).unwrap();
    }
}

#[test]
fn what_is_removed_and_computed_again_is_the_same() {
    let tokens = prompt(smollm2(), 200);
    let mut engine = open(smollm2());
    prefill(&mut engine, 0, &tokens, 0..100);
    let first = computed(&mut engine, 0, &tokens, 100..200);
    engine.remove(SeqId(0), 100).unwrap();
    assert_eq!(engine.held(SeqId(0)), Some(0..100));
    assert!(computed(&mut engine, 0, &tokens, 100..200) == first);
    // What another owner keeps survives the removal.
    engine.share(SeqId(0), SeqId(1), 0..200).unwrap();
    engine.remove(SeqId(0), 0).unwrap();
    assert_eq!((engine.held(SeqId(0)), engine.held(SeqId(1))), (None, Some(0..200)));
    engine.remove(SeqId(1), 100).unwrap();
    assert!(computed(&mut engine, 1, &tokens, 100..200) == first);
}

/// On q8_0 any company gives the same bits.
#[test]
fn interleaved_sequences_compute_what_they_compute_alone() {
    let prompts = [prompt(smollm2(), 90), prompt(smollm2(), 220).split_off(110)];
    let mut random = fastrand::Rng::with_seed(11);
    let alone: Vec<Vec<f32>> = prompts
        .iter()
        .map(|tokens| {
            let mut engine = smollm2().open(&options(KvType::Q8_0)).unwrap();
            prefill(&mut engine, 0, tokens, 0..tokens.len() - 1);
            computed(&mut engine, 0, tokens, tokens.len() - 1..tokens.len())
        })
        .collect();
    for round in 0..3 {
        let mut engine = smollm2().open(&options(KvType::Q8_0)).unwrap();
        let mut done = [0, 0];
        let mut found = [None, None];
        while (0..2).any(|n| done[n] < prompts[n].len()) {
            let mut batch = Batch::default();
            for n in [0, 1] {
                let n_tokens = random.usize(0..=70).min(prompts[n].len() - done[n]);
                batch.tokens.extend(chunk(n as u16, &prompts[n], done[n]..done[n] + n_tokens).tokens);
                done[n] += n_tokens;
            }
            if batch.tokens.is_empty() {
                continue;
            }
            engine.decode(&batch).unwrap();
            for n in [0, 1] {
                let last = batch.tokens.iter().position(|t| t.seq.0 == n as u16 && t.pos + 1 == prompts[n].len());
                found[n] = last.map(|row| engine.logits(row).unwrap().to_vec()).or(found[n].take());
            }
        }
        for n in [0, 1] {
            assert!(found[n].as_ref() == Some(&alone[n]), "round {round}, sequence {n}");
        }
    }
}

#[test]
fn without_free_cells_nothing_is_lost() {
    let tokens = prompt(smollm2(), 256);
    let options = ContextOptions { n_cells: 256, ..options(KvType::F16) };
    let mut engine = smollm2().open(&options).unwrap();
    prefill(&mut engine, 0, &tokens, 0..200);
    let before = state(&mut engine, 0, 200);
    let too_many = chunk(1, &tokens, 0..57);
    assert!(matches!(engine.decode(&too_many), Err(DecodeError::NoFreeCells { n_tokens: 57 })));
    engine.logits(0).unwrap_err();
    assert_eq!((engine.held(SeqId(0)), engine.held(SeqId(1))), (Some(0..200), None));
    assert!(state(&mut engine, 0, 200) == before);
    // A sequence that is longer than the cells is a matter of cells too.
    prefill(&mut engine, 0, &tokens, 200..256);
    let beyond = BatchToken { token: Token(1), pos: 256, seq: SeqId(0), wants_logits: true };
    assert!(matches!(engine.decode(&Batch { tokens: vec![beyond] }), Err(DecodeError::NoFreeCells { .. })));
    engine.remove(SeqId(0), 0).unwrap();
    engine.decode(&too_many).unwrap();
    assert_eq!(engine.held(SeqId(1)), Some(0..57));
}

#[test]
fn gemma_begins_with_its_bos_once() {
    let Some(path) = models::gemma() else { return };
    let vocab = LoadedModel::load(&path, Weights::None, Some(CHATML), |_| {}).unwrap().vocab();
    assert_eq!(vocab.bos(), Some(Token(2)));
    assert!(!vocab.tokenize("Hello", Special::Parsed).contains(&Token(2)));
    let mut bytes = Vec::new();
    // Byte tokens: a control character is in no vocabulary.
    vocab.tokenize("a\u{1}ß\u{10FFFF}", Special::Text).into_iter().for_each(|token| vocab.piece(token, &mut bytes));
    assert_eq!(String::from_utf8(bytes).unwrap(), "a\u{1}ß\u{10FFFF}");
}

/// llama.cpp's own count of used cells. It reads its variable at start, so the test runs itself once more with it set.
#[test]
fn shared_cells_are_stored_once() {
    const VARIABLE: &str = "LLAMA_KV_CACHE_DEBUG";
    if std::env::var_os(VARIABLE).is_none() {
        let name = "engine::llama::tests::shared_cells_are_stored_once";
        let this = std::env::current_exe().unwrap();
        let run = std::process::Command::new(this).args(["--exact", name, "--nocapture"]).env(VARIABLE, "1").output();
        let run = run.unwrap();
        let output = String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success() && output.contains("1 passed"), "{output}");
        return;
    }
    let tokens = prompt(smollm2(), 200);
    let mut engine = open(smollm2());
    let used_after = |engine: &mut LlamaEngine, seq: u16, range: Range<usize>| {
        let log = logged(|| engine.decode(&chunk(seq, &tokens, range)).unwrap());
        let line = log.lines().rfind(|line| line.contains("used =")).unwrap_or_else(|| panic!("{log}"));
        let used = line.split("used =").nth(1).unwrap().split(',').next().unwrap();
        used.trim().parse::<usize>().unwrap()
    };
    // The count is the one before the batch takes its cells.
    assert_eq!(used_after(&mut engine, 0, 0..100), 0);
    engine.share(SeqId(0), SeqId(1), 0..100).unwrap();
    engine.share(SeqId(0), SeqId(2), 0..90).unwrap();
    assert_eq!(used_after(&mut engine, 1, 100..110), 100);
    engine.remove(SeqId(0), 0).unwrap();
    assert_eq!(used_after(&mut engine, 2, 90..91), 110);
    engine.remove(SeqId(1), 0).unwrap();
    assert_eq!(used_after(&mut engine, 2, 91..92), 91);
}

/// What llama.cpp logs on this thread while `call` runs.
fn logged(call: impl FnOnce()) -> String {
    let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || Lines(writer.clone()))
        .finish();
    tracing::subscriber::with_default(subscriber, call);
    let lines = lines.lock().unwrap();
    String::from_utf8_lossy(&lines).into_owned()
}

struct Lines(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_log_goes_to_tracing_with_target_llama() {
    let log = logged(|| drop(open(smollm2())));
    assert!(log.lines().any(|line| line.contains("DEBUG llama: ") && line.contains("n_ctx")), "{log}");
}
