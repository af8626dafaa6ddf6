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
    pub fn block(self) -> (u64, u64) {
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
    /// K/V heads of each layer that has K/V of its own; grouped-query models share one among several query heads.
    pub kv_heads: Vec<u64>,
    /// Numbers in one head of K. Where layers differ, those of the larger ones: an upper bound.
    pub k_head_size: u64,
    /// Numbers in one head of V; 0 where V is made from K.
    pub v_head_size: u64,
    /// Numbers that stand for one token between two layers.
    pub width: u64,
    pub n_vocab: u64,
    /// The context the model was trained for, in tokens.
    pub n_context_train: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of the weights of all adapters that were loaded with them.
    pub adapter_bytes: u64,
}

impl ModelFacts {
    /// Bytes of K and V of one token; where all layers are alike: 2 × layers × KV heads × head size × bytes of a number.
    pub fn kv_bytes_per_token(&self, kv_type: KvType) -> u64 {
        let layer = |n_heads| kv_type.bytes(n_heads * self.k_head_size) + kv_type.bytes(n_heads * self.v_head_size);
        self.kv_heads.iter().map(|&n_heads| layer(n_heads)).sum()
    }

    /// Why K and V cannot be kept as `kv_type`, if they cannot. Quantised V needs flash attention, and llama.cpp computes that
    /// on whole blocks of a head.
    pub fn refusal_of(&self, kv_type: KvType) -> Option<String> {
        let (_, block) = kv_type.block();
        if block == 1 {
            return None;
        }
        if self.architecture == "grok" {
            return Some(
                "needs flash attention, which llama.cpp does not have for this architecture; \"f16\" would do".into(),
            );
        }
        let heads = [("K", self.k_head_size), ("V", self.v_head_size)];
        let (name, size) = heads.into_iter().find(|(_, size)| size % block != 0)?;
        Some(format!(
            "stores blocks of {block} numbers, and a head of {name} has {size} in this model; \"f16\" would do"
        ))
    }

    /// K/V heads of a layer, if all have the same number.
    pub fn kv_heads_of_all(&self) -> Option<u64> {
        let first = *self.kv_heads.first()?;
        self.kv_heads.iter().all(|&n_heads| n_heads == first).then_some(first)
    }

    /// Bytes that llama.cpp allocates to compute a step of `n_batch` tokens over `n_cells` cells: an estimate.
    ///
    /// Logits for every token of a step, one f16 mask over the cells, and about eight times the width for what lies
    /// between two layers. With flash attention; without it, each query head has scores over all cells beside that.
    /// Within 2 % of what llama.cpp logs for SmolLM2 135M, Gemma 3 270M and Qwen2.5 0.5B.
    pub fn compute_bytes(&self, n_cells: u64, n_batch: u64) -> u64 {
        n_batch * (4 * self.n_vocab + 2 * n_cells + 4 * 8 * self.width)
    }

    /// Bytes of the logits that llama.cpp keeps for each of `n_seq_max` sequences.
    pub fn output_bytes(&self, n_seq_max: u64) -> u64 {
        4 * self.n_vocab * n_seq_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(kv_heads: &[u64], head_size: u64) -> ModelFacts {
        ModelFacts {
            architecture: "llama".to_owned(),
            kv_heads: kv_heads.to_vec(),
            k_head_size: head_size,
            v_head_size: head_size,
            width: 8_192,
            n_vocab: 128_256,
            n_context_train: 131_072,
            weight_bytes: 0,
            adapter_bytes: 0,
        }
    }

    #[test]
    fn llama_3_70b_needs_320_kib_a_token_and_43_gb_for_its_context() {
        let per_token = facts(&[8; 80], 128).kv_bytes_per_token(KvType::Bf16);
        assert_eq!(per_token, 320 << 10);
        assert_eq!(per_token * 131_072, 42_949_672_960);
    }

    #[test]
    fn four_positions_of_one_small_layer_are_192_bytes() {
        assert_eq!(4 * facts(&[2], 3).kv_bytes_per_token(KvType::F32), 192);
    }

    #[test]
    fn sixty_four_query_heads_on_eight_kv_heads_need_an_eighth() {
        let [shared, own] = [[8; 80], [64; 80]].map(|heads| facts(&heads, 128).kv_bytes_per_token(KvType::F16));
        assert_eq!(shared * 8, own);
    }

    #[test]
    fn quantised_numbers_are_counted_with_their_scales() {
        let facts = facts(&[8; 80], 128);
        let f16 = facts.kv_bytes_per_token(KvType::F16);
        assert_eq!(facts.kv_bytes_per_token(KvType::Q8_0) * 64, f16 * 34);
        assert_eq!(facts.kv_bytes_per_token(KvType::Q4_0) * 64, f16 * 18);
        assert_eq!(facts.kv_bytes_per_token(KvType::F32), f16 * 2);
    }

    #[test]
    fn heads_that_are_no_whole_blocks_are_not_quantised() {
        let refused =
            |facts: ModelFacts| [KvType::F16, KvType::Q8_0, KvType::Q4_0].map(|kv| facts.refusal_of(kv).is_some());
        assert_eq!(refused(facts(&[8; 80], 128)), [false; 3]);
        assert_eq!(refused(facts(&[8; 80], 80)), [false, true, true]);
        assert_eq!(refused(ModelFacts { v_head_size: 72, ..facts(&[8], 64) }), [false, true, true]);
        assert_eq!(refused(ModelFacts { v_head_size: 0, ..facts(&[1; 61], 576) }), [false; 3]);
        assert_eq!(refused(ModelFacts { architecture: "grok".into(), ..facts(&[8], 128) }), [false, true, true]);
    }

    #[test]
    fn each_layer_counts_its_own_heads_and_v_its_own_size() {
        let mixed = ModelFacts { v_head_size: 32, ..facts(&[1, 2, 4], 64) };
        assert_eq!(mixed.kv_bytes_per_token(KvType::F16), 7 * (64 + 32) * 2);
        assert_eq!((mixed.kv_heads_of_all(), facts(&[8; 80], 128).kv_heads_of_all()), (None, Some(8)));
        let latent = ModelFacts { v_head_size: 0, ..facts(&[1; 61], 576) };
        assert_eq!(latent.kv_bytes_per_token(KvType::F16), 61 * 576 * 2);
    }
}
