//! Loading the configured model, with progress for whoever waits.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::config::{Config, read_text};
use crate::engine::EngineError;
use crate::engine::llama::{LoadedModel, Weights};

/// Loads the configured model's weights onto the configured devices.
pub(super) fn load(config: &Config) -> Result<Arc<LoadedModel>, EngineError> {
    let weights = Weights::On { gpu: config.model.gpu, layers: config.model.gpu_layers };
    let progress = super::progress::Progress::percent("loading the model");
    load_as(config, weights, move |done| progress.set_percent(done))
}

/// Loads vocabulary and template alone: enough to plan.
pub(super) fn load_vocabulary(config: &Config) -> Result<Arc<LoadedModel>, EngineError> {
    load_as(config, Weights::None, |_| {})
}

fn load_as(
    config: &Config,
    weights: Weights,
    progress: impl FnMut(f32) + 'static,
) -> Result<Arc<LoadedModel>, EngineError> {
    let template = config.model.chat_template.as_deref().map(read_template).transpose()?;
    let adapters: Vec<PathBuf> = config.model.adapters.iter().map(|adapter| adapter.path.clone()).collect();
    let model = LoadedModel::load(&config.model.path, weights, template.as_deref(), progress)?;
    model.with_adapters(&adapters).map(Arc::new)
}

fn read_template(path: &Path) -> Result<String, EngineError> {
    read_text(path).map_err(|error| EngineError::Template(format!("{}: {error}", path.display())))
}
