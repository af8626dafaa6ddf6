//! Facts of a model file that decide what it costs, where its weights go, and the K/V formula.

/// Whether weights go onto a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gpu {
    /// If there is one.
    Auto,
    Required,
    Off,
}

/// How many layers go onto the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuLayers {
    All,
    Count(u32),
}

/// Number format of K and V in the cells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KvType {
    F32,
    F16,
    Bf16,
    Q8_0,
    Q4_0,
}

impl KvType {
    /// (bytes, numbers) of one block: ggml stores quantised numbers in blocks with a shared scale.
    fn block(self) -> (u64, u64) {
        match self {
            KvType::F32 => (4, 1),
            KvType::F16 | KvType::Bf16 => (2, 1),
            KvType::Q8_0 => (34, 32),
            KvType::Q4_0 => (18, 32),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            KvType::F32 => "f32",
            KvType::F16 => "f16",
            KvType::Bf16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::Q4_0 => "q4_0",
        }
    }

    /// Bytes of `n` numbers.
    pub fn bytes(self, n: u64) -> u64 {
        let (bytes, numbers) = self.block();
        n / numbers * bytes + n % numbers * bytes / numbers
    }
}

/// What a model's header says. Read without loading the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelFacts {
    /// `general.architecture`: "llama", "gemma3", …
    pub architecture: String,
    pub n_layers: u64,
    /// K/V heads of each layer that attends; grouped-query models share one among several query heads.
    pub n_kv_heads: u64,
    /// Size of one head of K, in numbers; V's is the same in every model of the allow-list.
    pub head_size: u64,
    pub n_vocab: u64,
    /// The context the model was trained for, in tokens.
    pub n_context_train: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
}

impl ModelFacts {
    /// Bytes of K and V of one token: 2 × layers × KV heads × head size × bytes of a number.
    pub fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        2 * self.n_layers * kv_type.bytes(self.n_kv_heads * self.head_size)
    }
}
