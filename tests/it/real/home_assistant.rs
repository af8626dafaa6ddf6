//! The first requests of Home Assistant's recording on the real engine: it computes what the simulated one says.

use std::sync::Arc;

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};

use crate::home_assistant::{CONTEXT, Recording, bodies, replay, simulated};
use crate::house::Usage;
use crate::models;

/// 50,000 prompt tokens, of which 7,300 are computed: a minute of two quiet cores.
const N_REQUESTS: usize = 8;

#[test]
fn the_first_requests_of_a_day_compute_what_the_simulated_engine_says() {
    let path = models::smollm2();
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(&path, weights, None, |_| {}).unwrap());
    let bodies = &bodies(Recording::LlamaCpp)[..N_REQUESTS];
    let said = |usages: Vec<Usage>| usages.iter().map(|usage| (usage.n_prompt, usage.n_cached)).collect::<Vec<_>>();
    assert_eq!(said(replay(model, CONTEXT, bodies)), said(replay(simulated(&path), CONTEXT, bodies)));
}
