//! Writes GGUF files of tiny models with random weights: what they say means nothing, how they remember does.
//!
//! A *hybrid* has layers that attend beside layers that recur. The vocabulary is the 256 bytes.

use std::io::Write;

use tempfile::NamedTempFile;

const N_EMBD: usize = 64;
const N_INNER: usize = 2 * N_EMBD;
const N_STATE: usize = 8;
const N_CONV: usize = 4;
const N_DT: usize = 4;
const N_FF: usize = 96;
const N_VOCAB: usize = 3 + 256;

/// Two recurrent layers.
pub(super) fn mamba() -> NamedTempFile {
    let mut tensors = ends();
    tensors.extend(recurrent_layer(0));
    tensors.extend(recurrent_layer(1));
    write("mamba", vec![("mamba.attention.head_count", number(0))], tensors)
}

/// A recurrent layer and one that attends.
pub(super) fn jamba() -> NamedTempFile {
    let mut tensors = ends();
    tensors.extend(recurrent_layer(0));
    for (name, n) in [("dt", N_DT), ("b", N_STATE), ("c", N_STATE)] {
        tensors.push(tensor(format!("blk.0.ssm_{name}_norm.weight"), &[n], Fill::One));
    }
    tensors.push(tensor("blk.1.attn_norm.weight", &[N_EMBD], Fill::One));
    for name in ["q", "k", "v", "output"] {
        tensors.push(tensor(format!("blk.1.attn_{name}.weight"), &[N_EMBD, N_EMBD], Fill::Random));
    }
    tensors.extend((0..2).flat_map(feed_forward));
    let heads = vec![("jamba.attention.head_count", number(2)), ("jamba.attention.head_count_kv", numbers(&[0, 2]))];
    write("jamba", heads, tensors)
}

/// Positions that the windowed layer of `gemma` sees.
pub(super) const WINDOW: usize = 32;

/// A layer with a window of `WINDOW` and one that sees all. `gemma3` is proved to be cut under guard, `gemma2` is not.
pub(super) fn gemma(architecture: &'static str) -> NamedTempFile {
    const HEAD: usize = N_EMBD / 2;
    let mut tensors = ends();
    for layer in 0..2 {
        let named = |name: &str, shape: &[usize], fill| tensor(format!("blk.{layer}.{name}.weight"), shape, fill);
        tensors.push(named("attn_norm", &[N_EMBD], Fill::One));
        tensors.push(named("attn_q", &[N_EMBD, 2 * HEAD], Fill::Random));
        tensors.push(named("attn_k", &[N_EMBD, HEAD], Fill::Random));
        tensors.push(named("attn_v", &[N_EMBD, HEAD], Fill::Random));
        tensors.push(named("attn_output", &[2 * HEAD, N_EMBD], Fill::Random));
        tensors.push(named("post_attention_norm", &[N_EMBD], Fill::One));
        tensors.push(named("post_ffw_norm", &[N_EMBD], Fill::One));
        if architecture == "gemma3" {
            tensors.push(named("attn_q_norm", &[HEAD], Fill::One));
            tensors.push(named("attn_k_norm", &[HEAD], Fill::One));
        }
        tensors.extend(feed_forward(layer));
    }
    let own = |name: &str| format!("{architecture}.attention.{name}");
    let numbers = [
        ("head_count", 2),
        ("head_count_kv", 1),
        ("key_length", HEAD),
        ("value_length", HEAD),
        ("sliding_window", WINDOW),
        // Every second layer sees all.
        ("sliding_window_pattern", 2),
    ];
    let values: Vec<(String, Value)> = numbers.map(|(name, n)| (own(name), number(n))).into();
    write(architecture, values.iter().map(|(name, value)| (name.as_str(), value.clone())).collect(), tensors)
}

pub(super) fn qwen3() -> NamedTempFile {
    qwen3_with_heads_of(N_EMBD / 2)
}

/// Two layers of full attention with normed queries and keys, two query heads on one K/V head.
pub(super) fn qwen3_with_heads_of(n_numbers: usize) -> NamedTempFile {
    let mut tensors = ends();
    for layer in 0..2 {
        let named = |name: &str, shape: &[usize], fill| tensor(format!("blk.{layer}.{name}.weight"), shape, fill);
        tensors.push(named("attn_norm", &[N_EMBD], Fill::One));
        tensors.push(named("attn_q", &[N_EMBD, 2 * n_numbers], Fill::Random));
        tensors.push(named("attn_k", &[N_EMBD, n_numbers], Fill::Random));
        tensors.push(named("attn_v", &[N_EMBD, n_numbers], Fill::Random));
        tensors.push(named("attn_output", &[2 * n_numbers, N_EMBD], Fill::Random));
        tensors.push(named("attn_q_norm", &[n_numbers], Fill::One));
        tensors.push(named("attn_k_norm", &[n_numbers], Fill::One));
        tensors.extend(feed_forward(layer));
    }
    let heads = vec![
        ("qwen3.attention.head_count", number(2)),
        ("qwen3.attention.head_count_kv", number(1)),
        ("qwen3.attention.key_length", number(n_numbers)),
        ("qwen3.attention.value_length", number(n_numbers)),
    ];
    write("qwen3", heads, tensors)
}

/// A LoRA adapter of rank 4 for the `qwen3` of this file: it changes queries, K and V of both layers. Those of different seeds
/// change them in different ways.
pub(super) fn adapter(seed: u64) -> NamedTempFile {
    const RANK: usize = 4;
    let head = N_EMBD / 2;
    let mut tensors = Vec::new();
    for layer in 0..2 {
        for (name, n_out) in [("q", 2 * head), ("k", head), ("v", head)] {
            let named = |part: &str| format!("blk.{layer}.attn_{name}.weight.lora_{part}");
            tensors.push(tensor(named("a"), &[N_EMBD, RANK], Fill::Random));
            tensors.push(tensor(named("b"), &[RANK, n_out], Fill::Random));
        }
    }
    let values = vec![
        ("general.type".to_owned(), string("adapter")),
        ("general.architecture".to_owned(), string("qwen3")),
        ("adapter.type".to_owned(), string("lora")),
        ("adapter.lora.alpha".to_owned(), real(RANK as f32)),
    ];
    write_file(values, tensors, seed)
}

enum Fill {
    One,
    /// A decay: below zero.
    Decay,
    Random,
}

struct Tensor {
    name: String,
    /// The fastest dimension first.
    shape: Vec<usize>,
    fill: Fill,
}

fn tensor(name: impl Into<String>, shape: &[usize], fill: Fill) -> Tensor {
    Tensor { name: name.into(), shape: shape.to_vec(), fill }
}

fn ends() -> Vec<Tensor> {
    vec![
        tensor("token_embd.weight", &[N_EMBD, N_VOCAB], Fill::Random),
        tensor("output_norm.weight", &[N_EMBD], Fill::One),
    ]
}

fn feed_forward(layer: usize) -> Vec<Tensor> {
    let norm = tensor(format!("blk.{layer}.ffn_norm.weight"), &[N_EMBD], Fill::One);
    let shapes = [("gate", [N_EMBD, N_FF]), ("up", [N_EMBD, N_FF]), ("down", [N_FF, N_EMBD])];
    let weights = shapes.map(|(name, shape)| tensor(format!("blk.{layer}.ffn_{name}.weight"), &shape, Fill::Random));
    [norm].into_iter().chain(weights).collect()
}

fn recurrent_layer(layer: usize) -> Vec<Tensor> {
    let named = |name: &str, shape: &[usize], fill| tensor(format!("blk.{layer}.{name}"), shape, fill);
    vec![
        named("attn_norm.weight", &[N_EMBD], Fill::One),
        named("ssm_in.weight", &[N_EMBD, 2 * N_INNER], Fill::Random),
        named("ssm_conv1d.weight", &[N_CONV, N_INNER], Fill::Random),
        named("ssm_conv1d.bias", &[N_INNER], Fill::Random),
        named("ssm_x.weight", &[N_INNER, N_DT + 2 * N_STATE], Fill::Random),
        named("ssm_dt.weight", &[N_DT, N_INNER], Fill::Random),
        named("ssm_dt.bias", &[N_INNER], Fill::Random),
        named("ssm_a", &[N_STATE, N_INNER], Fill::Decay),
        named("ssm_d", &[N_INNER], Fill::One),
        named("ssm_out.weight", &[N_INNER, N_EMBD], Fill::Random),
    ]
}

/// Type and bytes of a value.
type Value = (u32, Vec<u8>);

fn number(n: usize) -> Value {
    (4, (n as u32).to_le_bytes().to_vec())
}

fn real(x: f32) -> Value {
    (6, x.to_le_bytes().to_vec())
}

fn string(text: &str) -> Value {
    (8, [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat())
}

fn numbers(all: &[usize]) -> Value {
    array(&all.iter().map(|&n| number(n)).collect::<Vec<Value>>())
}

fn array(items: &[Value]) -> Value {
    let head = [&items[0].0.to_le_bytes()[..], &(items.len() as u64).to_le_bytes()].concat();
    (9, items.iter().fold(head, |bytes, (_, item)| [bytes, item.clone()].concat()))
}

fn write(architecture: &str, more: Vec<(&str, Value)>, tensors: Vec<Tensor>) -> NamedTempFile {
    let own = |name: &str| format!("{architecture}.{name}");
    let names = ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter();
    let tokens: Vec<Value> =
        names.chain((0..256).map(|byte| format!("<0x{byte:02X}>"))).map(|name| string(&name)).collect();
    let types: Vec<Value> =
        [2, 3, 3].into_iter().chain([6; 256]).map(|kind: i32| (5, kind.to_le_bytes().to_vec())).collect();
    let scores: Vec<Value> = (0..N_VOCAB).map(|_| real(0.0)).collect();
    let mut values = vec![
        ("general.architecture".to_owned(), string(architecture)),
        (own("context_length"), number(4096)),
        (own("embedding_length"), number(N_EMBD)),
        (own("feed_forward_length"), number(N_FF)),
        (own("block_count"), number(2)),
        (own("ssm.conv_kernel"), number(N_CONV)),
        (own("ssm.inner_size"), number(N_INNER)),
        (own("ssm.state_size"), number(N_STATE)),
        (own("ssm.time_step_rank"), number(N_DT)),
        (own("attention.layer_norm_rms_epsilon"), real(1e-5)),
        ("tokenizer.ggml.model".to_owned(), string("llama")),
        ("tokenizer.ggml.tokens".to_owned(), array(&tokens)),
        ("tokenizer.ggml.token_type".to_owned(), array(&types)),
        ("tokenizer.ggml.scores".to_owned(), array(&scores)),
        ("tokenizer.ggml.bos_token_id".to_owned(), number(1)),
        ("tokenizer.ggml.eos_token_id".to_owned(), number(2)),
    ];
    values.extend(more.into_iter().map(|(name, value)| (name.to_owned(), value)));
    write_file(values, tensors, 3)
}

/// `seed`: of the random weights.
fn write_file(values: Vec<(String, Value)>, tensors: Vec<Tensor>, seed: u64) -> NamedTempFile {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((values.len() as u64).to_le_bytes());
    for (name, (kind, bytes)) in values {
        file.extend(string(&name).1);
        file.extend(kind.to_le_bytes());
        file.extend(bytes);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut data = Vec::new();
    for Tensor { name, shape, fill } in tensors {
        file.extend(string(&name).1);
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|&n| file.extend((n as u64).to_le_bytes()));
        // Type 0: 32-bit floats.
        file.extend(0u32.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        // Weights about as large as keep a sum over the fastest dimension near one.
        let scale = 1.7 / (shape[0] as f32).sqrt();
        for _ in 0..shape.iter().product() {
            let weight = match fill {
                Fill::One => 1.0,
                Fill::Decay => -random.f32() - 0.1,
                Fill::Random => (2.0 * random.f32() - 1.0) * scale,
            };
            data.extend(f32::to_le_bytes(weight));
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    let mut written = NamedTempFile::new().unwrap();
    written.write_all(&file).unwrap();
    written
}
