//! The first requests of Home Assistant's recordings on the real engine, on the routes they came by: it computes what the
//! simulated one says.

use std::sync::Arc;

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};

use crate::home_assistant::{CONTEXT, Recording, simulated};
use crate::models;
use crate::recorded::counts;

/// 50,000 prompt tokens, of which 7,300 are computed: two to three minutes of two quiet cores.
const N_REQUESTS: usize = 8;

fn check(recording: Recording) {
    let path = models::smollm2();
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(&path, weights, None, |_| {}).unwrap());
    let counted = counts(model, CONTEXT, recording, N_REQUESTS);
    assert_eq!(counted, counts(simulated(&path), CONTEXT, recording, N_REQUESTS));
    let n_cached: usize = counted.iter().map(|(_, n_cached)| n_cached).sum();
    assert!(counted.len() == N_REQUESTS && n_cached > 0, "{counted:?}");
}

#[test]
fn the_first_requests_of_its_llama_cpp_integration_compute_what_the_simulated_engine_says() {
    check(Recording::LlamaCpp);
}

#[test]
fn the_first_requests_of_its_ollama_integration_compute_what_the_simulated_engine_says() {
    check(Recording::Ollama);
}
