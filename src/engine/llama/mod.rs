//! Defines `LoadedModel`: weights, vocabulary and chat template of a GGUF file, through llama.cpp.
//!
//! The only folder that names `llama_cpp_2` or its sys crate, and the only one with unsafe code; each use says why it is
//! sound. `header` reads a file before llama.cpp sees it, `context` is the engine over the pointers of `raw`, `vocab` and `template` serve the
//! planner, `chat.cpp` reaches the part of llama.cpp that renders templates, `grammar.cpp` the one that reads grammars. Nothing here
//! decides what is cached.

#![allow(unsafe_code)]

mod answers;
mod backend;
mod context;
pub mod cpu;
mod form;
mod grammar;
mod header;
mod raw;
mod sampler;
mod saving;
mod template;
mod vocab;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use llama_cpp_2::LlamaBackendDeviceType;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_sys_2 as sys;

pub use context::LlamaEngine;
pub use header::{read_adapter, read_chat_templates, read_facts};
pub use sampler::Sampler;

use super::{
    ChatTemplate, ContextOptions, EngineError, Gpu, GpuLayers, KvType, Limits, MemoryClass, Model, ModelFacts, Vocab,
};
use context::Ids;
use template::{LlamaTemplate, Source};
use vocab::LlamaVocab;

/// What to load of a model, and onto what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weights {
    /// Vocabulary and template only: enough to plan, no engine can be opened.
    None,
    On {
        gpu: Gpu,
        layers: GpuLayers,
    },
}

pub struct LoadedModel {
    weights: Arc<LlamaModel>,
    facts: ModelFacts,
    class: MemoryClass,
    /// Positions that a windowed layer sees, where such layers are guarded.
    window: Option<usize>,
    on: Weights,
    /// By number; freed with the weights.
    adapters: Vec<raw::Adapter>,
    vocab: Arc<LlamaVocab>,
    template: Arc<LlamaTemplate>,
}

impl LoadedModel {
    /// Loads `path`. `progress` hears 0.0 to 1.0. `template` is a Jinja text that replaces the file's own.
    pub fn load(
        path: &Path,
        weights: Weights,
        template: Option<&str>,
        progress: impl FnMut(f32) + 'static,
    ) -> Result<LoadedModel, EngineError> {
        let failed = |reason: String| EngineError::Load { path: path.display().to_string(), reason };
        cpu::check().map_err(failed)?;
        let facts = read_facts(path)?;
        let params = params(weights, progress).map_err(failed)?;
        let (model, errors) = backend::with_errors(|| LlamaModel::load_from_file(backend::backend(), path, &params));
        let model = Arc::new(model.map_err(|error| failed(load_reason(&error.to_string(), &errors)))?);
        let vocab = Arc::new(LlamaVocab::new(model.clone()));
        let class = memory_class(&model, &facts.architecture);
        Ok(LoadedModel {
            class,
            window: window(&model, &facts.architecture).filter(|_| class == MemoryClass::Guarded),
            on: weights,
            adapters: Vec::new(),
            template: Arc::new(open_template(&model, &vocab, template)?.with_vocab(Arc::clone(&vocab))),
            vocab,
            facts,
            weights: model,
        })
    }

    /// The same with adapters, which get their numbers in this order. One that is not made for this model is refused; without
    /// weights no more can be seen of that than their headers tell.
    pub fn with_adapters(mut self, paths: &[PathBuf]) -> Result<LoadedModel, EngineError> {
        for path in paths {
            self.facts.adapter_bytes += read_adapter(path, &self.facts.architecture)?;
            if self.on == Weights::None {
                continue;
            }
            let (adapter, errors) = backend::with_errors(|| raw::Adapter::load(&self.weights, path));
            let failed = || EngineError::Adapter { path: path.display().to_string(), reason: adapter_reason(&errors) };
            self.adapters.push(adapter.ok_or_else(failed)?);
        }
        Ok(self)
    }

    fn open_with(
        &self,
        options: &ContextOptions,
        flash_attention: sys::llama_flash_attn_type,
    ) -> Result<LlamaEngine<'_>, EngineError> {
        if self.on == Weights::None {
            return Err(EngineError::Context("the model was loaded without its weights".into()));
        }
        LlamaEngine::open(self, options, flash_attention)
    }

    /// What, beside the files, the numbers in a saved sequence depend on. Layers on a GPU round in another way, and some
    /// models turn positions by other factors in a context longer than their first.
    fn saved_form(&self, kv_type: KvType, limits: &Limits) -> String {
        let place = match self.on {
            Weights::On { gpu, layers } if gpu != Gpu::Off => format!("{} {layers:?}", gpu_names()),
            _ => "cpu".to_owned(),
        };
        let key = format!("{}.rope.scaling.original_context_length", self.facts.architecture);
        let original: Option<usize> = self.weights.meta_val_str(&key).ok().and_then(|length| length.parse().ok());
        let rope = if original.is_some_and(|original| limits.n_cells > original) { "long" } else { "short" };
        format!(
            "llama-cpp-sys-2 {LLAMA_CPP}, {place}, kv {}, flash attention {}, swa full {}, rope {rope}",
            kv_type.name(),
            limits.flash_attention,
            limits.swa_full
        )
    }
}

impl Model for LoadedModel {
    type Engine<'a> = LlamaEngine<'a>;

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn memory_class(&self) -> MemoryClass {
        self.class
    }

    fn n_ids(&self, n_seq_max: usize) -> usize {
        Ids::of(self.class, n_seq_max).total()
    }

    fn n_adapters(&self) -> usize {
        self.adapters.len()
    }

    fn vocab(&self) -> Arc<dyn Vocab> {
        self.vocab.clone()
    }

    fn template(&self) -> Arc<dyn ChatTemplate> {
        self.template.clone()
    }

    fn open(&self, options: &ContextOptions) -> Result<LlamaEngine<'_>, EngineError> {
        self.open_with(options, sys::LLAMA_FLASH_ATTN_TYPE_AUTO)
    }
}

/// Architectures whose sequences our tests have cut and shared anywhere: plain full attention.
const REWINDABLE: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// The same for layers with a sliding window that keep all their cells under guard.
const GUARDED: [&str; 1] = ["gemma3"];

/// Architectures with a recurrent state whose saved sequences our tests have restored bit for bit.
const CHECKPOINTED: [&str; 2] = ["mamba", "jamba"];

fn memory_class(model: &LlamaModel, architecture: &str) -> MemoryClass {
    let window = window(model, architecture);
    let recurs = model.is_recurrent() || model.is_hybrid();
    let is_in = |list: &[&str]| list.contains(&architecture);
    match (window, recurs) {
        (None, false) if is_in(&REWINDABLE) => MemoryClass::Rewindable,
        (Some(1..), false) if is_in(&GUARDED) => MemoryClass::Guarded,
        (None, true) if is_in(&CHECKPOINTED) => MemoryClass::Checkpointed,
        _ => MemoryClass::Opaque,
    }
}

/// Positions that a windowed layer sees; 0 if the file's number is none.
fn window(model: &LlamaModel, architecture: &str) -> Option<usize> {
    let number = model.meta_val_str(&format!("{architecture}.attention.sliding_window")).ok()?;
    Some(number.parse().unwrap_or(0))
}

/// `replacement`, else what the file carries; llama.cpp's own fallback to ChatML is not taken.
fn open_template(
    model: &LlamaModel,
    vocab: &LlamaVocab,
    replacement: Option<&str>,
) -> Result<LlamaTemplate, EngineError> {
    let (bos, eos) = vocab.template_tokens();
    let source = |text| Source { text, bos: &bos, eos: &eos, strip_bos: vocab.bos().is_some() };
    if let Some(text) = replacement {
        return LlamaTemplate::open(&source(text), None);
    }
    let own = |name| model.chat_template(name).ok().and_then(|template| template.to_string().ok());
    let plain = own(None).ok_or_else(|| {
        EngineError::Template("the model's file has none; set model.chat_template to a Jinja file".into())
    })?;
    // Asked for a name it does not know, llama.cpp gives none.
    let with_tools = own(Some("tool_use"));
    LlamaTemplate::open(&source(&plain), with_tools.as_deref().map(source).as_ref())
}

fn params(weights: Weights, mut progress: impl FnMut(f32) + 'static) -> Result<LlamaModelParams, String> {
    let params = LlamaModelParams::default().with_progress_callback(move |done| {
        progress(done);
        true
    });
    // Without a number llama.cpp offloads every layer; without a device it offloads none.
    let without_devices = |params: LlamaModelParams| params.with_devices(&[]).map_err(|error| error.to_string());
    match weights {
        Weights::None => without_devices(params.with_vocab_only(true)),
        Weights::On { gpu: Gpu::Off, .. } => without_devices(params.with_n_gpu_layers(0)),
        Weights::On { gpu: Gpu::Required, .. } if !has_gpu() => {
            Err("gpu = \"required\", but there is no GPU that this build can use; build with the feature of yours \
             (cuda, metal, vulkan, rocm), or set gpu = \"auto\""
                .into())
        }
        Weights::On { layers: GpuLayers::All, .. } => Ok(params),
        Weights::On { layers: GpuLayers::Count(n_layers), .. } => Ok(params.with_n_gpu_layers(n_layers)),
    }
}

/// The version of the sys crate, as Cargo.toml pins it: what it writes only it may read.
const LLAMA_CPP: &str = "0.1.161";

/// Names of the GPUs, in llama.cpp's order.
fn gpu_names() -> String {
    let _initialised = backend::backend();
    let devices = llama_cpp_2::list_llama_ggml_backend_devices().into_iter();
    let is_gpu = |kind| matches!(kind, LlamaBackendDeviceType::Gpu | LlamaBackendDeviceType::IntegratedGpu);
    devices.filter(|device| is_gpu(device.device_type)).map(|device| device.description).collect::<Vec<_>>().join("+")
}

fn has_gpu() -> bool {
    devices().any(|(device, _)| matches!(device, LlamaBackendDeviceType::Gpu | LlamaBackendDeviceType::IntegratedGpu))
}

/// Bytes of this machine's memory that a model could take, used or not: RAM up to `ram_limit`, and that of GPUs unless they
/// are off.
pub fn memory_bytes(gpu: Gpu, ram_limit: Option<u64>) -> u64 {
    let counted = |(device, n_bytes): (LlamaBackendDeviceType, u64)| match device {
        LlamaBackendDeviceType::Cpu => n_bytes.min(ram_limit.unwrap_or(u64::MAX)),
        LlamaBackendDeviceType::Gpu if gpu != Gpu::Off => n_bytes,
        // Those have no memory but RAM.
        _ => 0,
    };
    devices().map(counted).sum()
}

/// Kind and bytes of memory of each device that this build can use.
fn devices() -> impl Iterator<Item = (LlamaBackendDeviceType, u64)> {
    let _initialised = backend::backend();
    let devices = llama_cpp_2::list_llama_ggml_backend_devices();
    devices.into_iter().map(|device| (device.device_type, device.memory_total as u64))
}

/// llama.cpp's first error names the cause; those after it only say that there was one.
fn load_reason(fallback: &str, errors: &[String]) -> String {
    let Some(error) = errors.first() else { return fallback.to_owned() };
    error.rsplit_once("error loading model: ").map_or(error.as_str(), |(_, reason)| reason).to_owned()
}

/// The same of an adapter.
fn adapter_reason(errors: &[String]) -> String {
    let Some(error) = errors.first() else { return "llama.cpp cannot load it".to_owned() };
    error.rsplit_once("failed to apply lora adapter: ").map_or(error.as_str(), |(_, reason)| reason).to_owned()
}

#[cfg(test)]
mod tests;
