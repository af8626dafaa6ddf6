//! Defines `read_facts`: what a model file costs, from its GGUF header alone.
//!
//! A *header* is everything in front of the weights: named values, then one entry for each tensor. It is read here, in
//! Rust and with every length checked against the file, because llama.cpp's getters abort on a value of another type
//! and because a fault should name its place. The weights themselves are neither read nor checked.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use crate::engine::{EngineError, ModelFacts};

/// What the header of `path` says. Fails on a file that is missing, no GGUF, cut off inside its header or in front of a
/// tensor's data, or without the values that the K/V formula needs.
pub fn read_facts(path: &Path) -> Result<ModelFacts, EngineError> {
    let facts = File::open(path)
        .map_err(|error| format!("cannot be opened: {error}"))
        .and_then(|file| Header::read(file)?.facts());
    facts.map_err(|reason| EngineError::Load { path: path.display().to_string(), reason })
}

/// Bytes of the weights of the LoRA adapter at `path`, if it is one for models of `architecture`. llama.cpp aborts on values
/// of other types than it expects, so each that it reads is looked at here.
pub fn read_adapter(path: &Path, architecture: &str) -> Result<u64, EngineError> {
    let n_bytes = File::open(path)
        .map_err(|error| format!("cannot be opened: {error}"))
        .and_then(|file| Header::read(file)?.adapter(architecture));
    n_bytes.map_err(|reason| EngineError::Adapter { path: path.display().to_string(), reason })
}

/// The chat templates in the header of `path`, one after the other: a file may have one of its own for requests with tools.
pub fn read_chat_templates(path: &Path) -> Result<String, EngineError> {
    let values = File::open(path)
        .map_err(|error| format!("cannot be opened: {error}"))
        .and_then(|file| Ok(Header::read(file)?.values));
    let values = values.map_err(|reason| EngineError::Load { path: path.display().to_string(), reason })?;
    let mut templates: Vec<(String, String)> = Vec::new();
    for (name, value) in values {
        if let (true, Value::Text(text)) = (name.starts_with("tokenizer.chat_template"), value) {
            templates.push((name, text));
        }
    }
    templates.sort_unstable();
    Ok(templates.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join("\n"))
}

/// Names longer than this are damage: the longest key in use has under 100 bytes.
const NAME_BYTES_MAX: u64 = 65_535;

/// Values and tensors beyond this are damage: the largest models have a few thousand tensors.
const ENTRIES_MAX: u64 = 1 << 20;

/// LLAMA_MAX_LAYERS; llama.cpp asserts on more.
const N_LAYERS_MAX: u64 = 512;

/// Numbers in K of one token and layer; large models have some ten thousand.
const ROW_MAX: u64 = 1 << 24;

/// A named value, as far as the facts need it.
enum Value {
    Number(u64),
    Text(String),
    /// Whole numbers, such as K/V heads of each layer.
    Numbers(Vec<u64>),
    /// A 32-bit float.
    Real,
    /// Length of an array of anything else, such as the vocabulary.
    Items(u64),
    Other,
}

struct Header {
    values: HashMap<String, Value>,
    /// Bytes from the end of the header to the end of the file.
    data_bytes: u64,
}

impl Header {
    fn read(file: File) -> Result<Header, String> {
        let mut reader = Reader::new(file).map_err(|error| error.to_string())?;
        Header::read_from(&mut reader).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                format!("is cut off: its header does not end within its {} bytes", reader.n_bytes)
            }
            _ => error.to_string(),
        })
    }

    fn read_from(reader: &mut Reader) -> io::Result<Header> {
        if reader.n_bytes < 4 || reader.array()? != *b"GGUF" {
            return Err(damage("is not a GGUF file".into()));
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(damage(format!("has GGUF version {version}, this program reads 2 and 3")));
        }
        let n_tensors = reader.count("tensors")?;
        let n_values = reader.count("values")?;

        let mut values = HashMap::new();
        for _ in 0..n_values {
            let name = reader.name()?;
            let value_type = reader.u32()?;
            let value = reader.value(value_type).map_err(|error| within(&name, error))?;
            values.insert(name, value);
        }

        let mut last_offset = 0;
        for _ in 0..n_tensors {
            let _name = reader.name()?;
            let n_dims = reader.u32()?;
            if n_dims > 4 {
                return Err(damage(format!("is damaged: a tensor of {n_dims} dimensions")));
            }
            reader.skip(u64::from(n_dims) * 8 + 4)?;
            last_offset = reader.u64()?.max(last_offset);
        }

        let alignment = match values.get("general.alignment") {
            Some(Value::Number(alignment)) if alignment.is_power_of_two() => *alignment,
            None => 32,
            Some(_) => return Err(damage("is damaged: general.alignment is no power of two".into())),
        };
        let data_start = reader.position.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
        let data_bytes = reader.n_bytes.saturating_sub(data_start);
        if n_tensors > 0 && last_offset >= data_bytes {
            return Err(damage(format!(
                "is cut off: a tensor begins {last_offset} bytes into {data_bytes} bytes of data"
            )));
        }
        Ok(Header { values, data_bytes })
    }

    fn facts(&self) -> Result<ModelFacts, String> {
        let architecture = match self.values.get("general.architecture") {
            Some(Value::Text(architecture)) => architecture.clone(),
            _ => return Err("names no general.architecture".into()),
        };
        let optional = |name: &str| match self.values.get(&format!("{architecture}.{name}")) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        };
        let required = |name: &str| optional(name).ok_or_else(|| format!("has no number {architecture}.{name}"));

        let n_blocks = required("block_count")?;
        if n_blocks == 0 || n_blocks > N_LAYERS_MAX {
            return Err(format!("is damaged: {n_blocks} layers"));
        }
        let n_heads = self.per_layer(&format!("{architecture}.attention.head_count"), n_blocks)?;
        let kv_heads = self.per_layer(&format!("{architecture}.attention.head_count_kv"), n_blocks)?;
        let kv_heads = kv_heads.or(n_heads.clone()).unwrap_or_default();
        if let Some(n_heads) = n_heads.iter().flatten().max().filter(|n_heads| kv_heads.iter().any(|n| n > n_heads)) {
            return Err(format!("is damaged: more K/V heads in a layer than its {n_heads} heads"));
        }
        let width = optional("embedding_length").unwrap_or(0);
        let default_size = n_heads.and_then(|heads| width.checked_div(heads.into_iter().max()?)).unwrap_or(0);
        let k_head_size = optional("attention.key_length").unwrap_or(default_size);
        // Multi-head latent attention holds one latent per token, from which both K and V are made.
        let is_latent = optional("attention.key_length_mla").is_some_and(|size| size > 0);
        let v_head_size = match is_latent {
            true => 0,
            false => optional("attention.value_length").unwrap_or(default_size),
        };
        let n_kv_heads = kv_heads.iter().copied().max().unwrap_or(0);
        let head_size = k_head_size.max(v_head_size);
        if n_kv_heads.checked_mul(head_size).is_none_or(|n_numbers| n_numbers > ROW_MAX) {
            return Err(format!("is damaged: {n_kv_heads} K/V heads of {head_size} numbers"));
        }
        // Layers at the end that predict further tokens are not computed, and others use the K/V of earlier ones.
        let n_own = n_blocks
            .saturating_sub(optional("nextn_predict_layers").unwrap_or(0))
            .saturating_sub(optional("attention.shared_kv_layers").unwrap_or(0));
        // Every how many layers one attends; the others are recurrent.
        let interval = optional("full_attention_interval").filter(|interval| *interval > 0).unwrap_or(1) as usize;
        let attends = |(layer_idx, n_heads): &(usize, u64)| *n_heads > 0 && (layer_idx + 1).is_multiple_of(interval);
        let kv_heads = kv_heads.into_iter().take(n_own as usize).enumerate().filter(attends).map(|(_, n)| n).collect();
        let n_vocab = match self.values.get("tokenizer.ggml.tokens") {
            Some(Value::Items(n_tokens)) => *n_tokens,
            _ => required("vocab_size")?,
        };
        Ok(ModelFacts {
            kv_heads,
            k_head_size,
            v_head_size,
            width,
            n_vocab,
            n_context_train: required("context_length")?,
            weight_bytes: self.data_bytes,
            adapter_bytes: 0,
            architecture,
        })
    }

    fn adapter(&self, architecture: &str) -> Result<u64, String> {
        let text = |name: &str| match self.values.get(name) {
            Some(Value::Text(text)) => text.as_str(),
            _ => "",
        };
        if text("general.type") != "adapter" {
            return Err("is no adapter: its general.type is another, or none".into());
        }
        if text("adapter.type") != "lora" {
            return Err("is no LoRA adapter: its adapter.type is another, or none".into());
        }
        let own = text("general.architecture");
        if own != architecture {
            return Err(format!("was made for the architecture {own:?}, the model's is {architecture:?}"));
        }
        if !matches!(self.values.get("adapter.lora.alpha"), None | Some(Value::Real)) {
            return Err("is damaged: its adapter.lora.alpha is no 32-bit float".into());
        }
        // Such an adapter counts from those tokens on, inside a prompt: what stands before would be its own and the model's at once.
        if self.values.contains_key("adapter.alora.invocation_tokens") {
            return Err("is an activated LoRA (it has invocation tokens), which hob does not support".into());
        }
        Ok(self.data_bytes)
    }

    /// A number that the header gives once for all layers or for each one.
    fn per_layer(&self, name: &str, n_layers: u64) -> Result<Option<Vec<u64>>, String> {
        match self.values.get(name) {
            Some(Value::Number(number)) => Ok(Some(vec![*number; n_layers as usize])),
            Some(Value::Numbers(numbers)) if numbers.len() as u64 >= n_layers => Ok(Some(numbers.clone())),
            Some(Value::Numbers(numbers)) => {
                Err(format!("is damaged: {name} for {} of {n_layers} layers", numbers.len()))
            }
            _ => Ok(None),
        }
    }
}

/// Reads little-endian values and knows how many bytes are left, so that no length in the file can ask for more.
struct Reader {
    inner: BufReader<File>,
    position: u64,
    n_bytes: u64,
}

impl Reader {
    fn new(file: File) -> io::Result<Reader> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(damage("is not a file".into()));
        }
        Ok(Reader { n_bytes: metadata.len(), inner: BufReader::with_capacity(1 << 16, file), position: 0 })
    }

    fn take(&mut self, n_bytes: u64) -> io::Result<()> {
        if n_bytes > self.n_bytes - self.position {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.position += n_bytes;
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        self.take(N as u64)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> io::Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn skip(&mut self, n_bytes: u64) -> io::Result<()> {
        self.take(n_bytes)?;
        self.inner.seek_relative(n_bytes as i64)
    }

    fn count(&mut self, what: &str) -> io::Result<u64> {
        let n_entries = self.u64()?;
        if n_entries > ENTRIES_MAX {
            return Err(damage(format!("is damaged: {n_entries} {what}")));
        }
        Ok(n_entries)
    }

    fn name(&mut self) -> io::Result<String> {
        let n_bytes = self.u64()?;
        if n_bytes == 0 || n_bytes > NAME_BYTES_MAX {
            return Err(damage(format!("is damaged: a name of {n_bytes} bytes")));
        }
        self.text(n_bytes)
    }

    fn text(&mut self, n_bytes: u64) -> io::Result<String> {
        self.take(n_bytes)?;
        let mut bytes = vec![0; n_bytes as usize];
        self.inner.read_exact(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn value(&mut self, value_type: u32) -> io::Result<Value> {
        match value_type {
            TEXT => {
                let n_bytes = self.u64()?;
                self.text(n_bytes).map(Value::Text)
            }
            ARRAY => {
                let item_type = self.u32()?;
                let n_items = self.u64()?;
                self.items(item_type, n_items)
            }
            number_type => self.number(number_type),
        }
    }

    fn items(&mut self, item_type: u32, n_items: u64) -> io::Result<Value> {
        match item_type {
            TEXT => {
                for _ in 0..n_items {
                    let n_bytes = self.u64()?;
                    self.skip(n_bytes)?;
                }
                Ok(Value::Items(n_items))
            }
            // Long arrays are scores and merges of the vocabulary; only their length matters.
            number_type if n_items > 4_096 => {
                let n_bytes = size_of_number(number_type)?.checked_mul(n_items).ok_or(io::ErrorKind::UnexpectedEof)?;
                self.skip(n_bytes)?;
                Ok(Value::Items(n_items))
            }
            number_type => {
                let mut numbers = Vec::new();
                for _ in 0..n_items {
                    match self.number(number_type)? {
                        Value::Number(number) => numbers.push(number),
                        _ => numbers.push(0),
                    }
                }
                Ok(Value::Numbers(numbers))
            }
        }
    }

    /// A whole number that is not negative, else `Other`.
    fn number(&mut self, number_type: u32) -> io::Result<Value> {
        let mut bytes = [0; 8];
        let n_bytes = size_of_number(number_type)? as usize;
        self.take(n_bytes as u64)?;
        self.inner.read_exact(&mut bytes[..n_bytes])?;
        let raw = u64::from_le_bytes(bytes);
        let sign_bit = 1 << (8 * n_bytes - 1);
        Ok(match number_type {
            UINT8 | UINT16 | UINT32 | UINT64 => Value::Number(raw),
            INT8 | INT16 | INT32 | INT64 if raw & sign_bit == 0 => Value::Number(raw),
            FLOAT32 => Value::Real,
            _ => Value::Other,
        })
    }
}

// The types of values as GGUF numbers them (ggml/include/gguf.h).
const UINT8: u32 = 0;
const INT8: u32 = 1;
const UINT16: u32 = 2;
const INT16: u32 = 3;
const UINT32: u32 = 4;
const INT32: u32 = 5;
const FLOAT32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
const UINT64: u32 = 10;
const INT64: u32 = 11;
const FLOAT64: u32 = 12;

fn size_of_number(number_type: u32) -> io::Result<u64> {
    match number_type {
        UINT8 | INT8 | BOOL => Ok(1),
        UINT16 | INT16 => Ok(2),
        UINT32 | INT32 | FLOAT32 => Ok(4),
        UINT64 | INT64 | FLOAT64 => Ok(8),
        other => Err(damage(format!("is damaged: a value of type {other}"))),
    }
}

fn damage(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

fn within(name: &str, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidData => damage(format!("{error} in {name}")),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// A header with `values`, one tensor at offset 0 and 64 bytes of data.
    fn file(values: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend((values.len() as u64).to_le_bytes());
        for (name, value_type, value) in values {
            bytes.extend(text(name));
            bytes.extend(value_type.to_le_bytes());
            bytes.extend(value);
        }
        bytes.extend(text("token_embd.weight"));
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(16_u64.to_le_bytes());
        bytes.extend(0_u32.to_le_bytes());
        bytes.extend(0_u64.to_le_bytes());
        bytes.resize(bytes.len().next_multiple_of(32) + 64, 0);
        bytes
    }

    fn text(text: &str) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
    }

    fn number(number: u32) -> Vec<u8> {
        number.to_le_bytes().to_vec()
    }

    fn numbers(numbers: &[u32]) -> Vec<u8> {
        let mut bytes = INT32.to_le_bytes().to_vec();
        bytes.extend((numbers.len() as u64).to_le_bytes());
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes
    }

    fn hybrid() -> Vec<u8> {
        with_values(&[("jamba.attention.head_count_kv", ARRAY, numbers(&[0, 2, 0, 2]))])
    }

    /// Four layers of eight heads, and `values`.
    fn with_values(values: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
        let common = [
            ("general.architecture", TEXT, text("jamba")),
            ("jamba.block_count", UINT32, number(4)),
            ("jamba.context_length", UINT32, number(1024)),
            ("jamba.embedding_length", UINT32, number(64)),
            ("jamba.vocab_size", UINT32, number(100)),
            ("jamba.attention.head_count", UINT32, number(8)),
        ];
        file(&[&common[..], values].concat())
    }

    fn read(bytes: &[u8]) -> Result<ModelFacts, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        read_facts(file.path()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_adapter_is_one_of_the_models_architecture() {
        let told = |name: &str, value_type, value: Vec<u8>| {
            let mut values = vec![
                ("general.type", TEXT, text("adapter")),
                ("general.architecture", TEXT, text("jamba")),
                ("adapter.type", TEXT, text("lora")),
                ("adapter.lora.alpha", FLOAT32, 16.0_f32.to_le_bytes().to_vec()),
            ];
            values.retain(|(other, ..)| *other != name);
            values.push((name, value_type, value));
            let mut written = tempfile::NamedTempFile::new().unwrap();
            written.write_all(&file(&values)).unwrap();
            let read = read_adapter(written.path(), "jamba").map_err(|error| error.to_string());
            read.map_err(|error| error.replace(&written.path().display().to_string(), "FILE"))
        };
        assert_eq!(told("general.name", TEXT, text("butler")), Ok(64));
        let refused = |name, value_type, value| told(name, value_type, value).unwrap_err();
        let not_one = "adapter FILE: is no adapter: its general.type is another, or none";
        assert_eq!(refused("general.type", TEXT, text("model")), not_one);
        // llama.cpp would abort on them.
        assert_eq!(refused("general.type", UINT32, number(1)), not_one);
        assert_eq!(
            refused("adapter.lora.alpha", UINT32, number(16)),
            "adapter FILE: is damaged: its adapter.lora.alpha is no 32-bit float"
        );
        assert_eq!(
            refused("adapter.type", TEXT, text("control_vector")),
            "adapter FILE: is no LoRA adapter: its adapter.type is another, or none"
        );
        assert_eq!(
            refused("general.architecture", TEXT, text("llama")),
            "adapter FILE: was made for the architecture \"llama\", the model's is \"jamba\""
        );
        assert_eq!(
            refused("adapter.alora.invocation_tokens", ARRAY, numbers(&[1, 2])),
            "adapter FILE: is an activated LoRA (it has invocation tokens), which hob does not support"
        );
        let missing = read_adapter(Path::new("/no/adapter.gguf"), "jamba").unwrap_err().to_string();
        assert!(missing.starts_with("adapter /no/adapter.gguf: cannot be opened: "), "{missing}");
    }

    #[test]
    fn layers_without_kv_heads_do_not_count() {
        let facts = read(&hybrid()).unwrap();
        assert_eq!((facts.kv_heads, facts.k_head_size, facts.v_head_size), (vec![2, 2], 8, 8));
        assert_eq!((facts.n_vocab, facts.n_context_train, facts.weight_bytes), (100, 1024, 64));
    }

    #[test]
    fn layers_that_differ_are_told_apart() {
        let heads = |values: &[(&str, u32, Vec<u8>)]| read(&with_values(values)).unwrap().kv_heads;
        assert_eq!(heads(&[]), [8; 4]);
        assert_eq!(heads(&[("jamba.attention.head_count_kv", ARRAY, numbers(&[1, 2, 4, 8]))]), [1, 2, 4, 8]);
        assert_eq!(heads(&[("jamba.full_attention_interval", UINT32, number(2))]), [8; 2]);
        assert_eq!(heads(&[("jamba.attention.shared_kv_layers", UINT32, number(1))]), [8; 3]);
        assert!(heads(&[("jamba.nextn_predict_layers", UINT32, number(9))]).is_empty());
    }

    #[test]
    fn v_can_be_smaller_than_k_or_made_from_it() {
        let length = |name| (name, UINT32, number(6));
        let [k, v] = ["jamba.attention.key_length", "jamba.attention.value_length"].map(length);
        let facts = read(&with_values(std::slice::from_ref(&v))).unwrap();
        assert_eq!((facts.k_head_size, facts.v_head_size), (8, 6));
        let facts = read(&with_values(&[k, v, length("jamba.attention.key_length_mla")])).unwrap();
        assert_eq!((facts.k_head_size, facts.v_head_size), (6, 0));
    }

    #[test]
    fn a_file_cut_anywhere_is_refused() {
        let bytes = hybrid();
        for n_bytes in 0..bytes.len() - 64 {
            let error = read(&bytes[..n_bytes]).unwrap_err();
            assert!(error.contains("cut off") || error.contains("not a GGUF"), "{n_bytes}: {error}");
        }
    }

    #[test]
    fn a_changed_byte_is_an_error_or_other_facts_but_no_panic() {
        let bytes = hybrid();
        for place in 0..bytes.len() {
            for value in [0, 0x7f, 0xff] {
                let mut changed = bytes.clone();
                changed[place] = value;
                let _ = read(&changed);
            }
        }
    }

    #[test]
    fn faults_name_the_file_and_the_reason() {
        let missing = read_facts(Path::new("/no/such/model.gguf")).unwrap_err().to_string();
        assert!(missing.starts_with("model /no/such/model.gguf: cannot be opened"), "{missing}");
        assert!(read(b"hello, I am a text file").unwrap_err().ends_with("is not a GGUF file"));
        let layers =
            |n_layers| file(&[("general.architecture", TEXT, text("a")), ("a.block_count", UINT32, number(n_layers))]);
        assert!(read(&layers(0)).unwrap_err().ends_with("is damaged: 0 layers"));
        let align = |alignment: u64| {
            let alignment = alignment.to_le_bytes().to_vec();
            file(&[("general.architecture", TEXT, text("a")), ("general.alignment", UINT64, alignment)])
        };
        assert!(read(&align(3)).unwrap_err().ends_with("general.alignment is no power of two"));
        assert!(read(&align(1 << 63)).unwrap_err().contains("is cut off"));
        assert!(read(&layers(513)).unwrap_err().ends_with("is damaged: 513 layers"));
        assert!(read(&file(&[])).unwrap_err().ends_with("names no general.architecture"));
        let folder = tempfile::tempdir().unwrap();
        assert!(read_facts(folder.path()).unwrap_err().to_string().ends_with("is not a file"));
    }
}
