//! Defines `LoadedModel`: weights, vocabulary and chat template of a GGUF file, through llama.cpp.
//!
//! The only folder that names `llama_cpp_2` or its sys crate, and the only one with unsafe code; each use says why it is
//! sound. `header` reads a file before llama.cpp sees it, `context` is the engine, `vocab` and `template` serve the
//! planner, `chat.cpp` reaches the part of llama.cpp that renders templates. Nothing here decides what is cached.

#![allow(unsafe_code)]

mod backend;
mod context;
pub mod cpu;
mod header;
mod sampler;
mod template;
mod vocab;

use std::path::Path;
use std::sync::Arc;

use llama_cpp_2::LlamaBackendDeviceType;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_sys_2 as sys;

pub use context::LlamaEngine;
pub use header::{read_chat_templates, read_facts};
pub use sampler::Sampler;

use super::{ChatTemplate, ContextOptions, EngineError, Gpu, GpuLayers, Memory, Model, ModelFacts, Vocab};
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
    memory: Memory,
    has_weights: bool,
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
        Ok(LoadedModel {
            memory: memory_class(&model, &facts.architecture),
            has_weights: weights != Weights::None,
            template: Arc::new(open_template(&model, &vocab, template)?),
            vocab,
            facts,
            weights: model,
        })
    }

    fn open_with(
        &self,
        options: &ContextOptions,
        flash_attention: sys::llama_flash_attn_type,
    ) -> Result<LlamaEngine<'_>, EngineError> {
        if !self.has_weights {
            return Err(EngineError::Context("the model was loaded without its weights".into()));
        }
        LlamaEngine::open(self, options, flash_attention)
    }
}

impl Model for LoadedModel {
    type Engine<'a> = LlamaEngine<'a>;

    fn facts(&self) -> &ModelFacts {
        &self.facts
    }

    fn memory(&self) -> Memory {
        self.memory
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

fn memory_class(model: &LlamaModel, architecture: &str) -> Memory {
    let has_window = model.meta_val_str(&format!("{architecture}.attention.sliding_window")).is_ok();
    let is_proved = REWINDABLE.contains(&architecture) && !has_window && !model.is_recurrent() && !model.is_hybrid();
    if is_proved { Memory::Rewindable } else { Memory::Opaque }
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

fn has_gpu() -> bool {
    devices().any(|(device, _)| matches!(device, LlamaBackendDeviceType::Gpu | LlamaBackendDeviceType::IntegratedGpu))
}

/// Bytes of this machine's memory that a model could take, used or not: RAM, and that of GPUs unless they are off.
pub fn memory_bytes(gpu: Gpu) -> u64 {
    let counts = |device| match device {
        LlamaBackendDeviceType::Cpu => true,
        LlamaBackendDeviceType::Gpu => gpu != Gpu::Off,
        // Those have no memory but RAM.
        _ => false,
    };
    devices().filter(|&(device, _)| counts(device)).map(|(_, n_bytes)| n_bytes).sum()
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

#[cfg(test)]
mod tests;
