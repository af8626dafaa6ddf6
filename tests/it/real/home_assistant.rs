//! The first requests of Home Assistant's recordings on the real engine, on the routes they came by: it computes what the
//! simulated one says.

use std::sync::Arc;

use hob::config::{Gpu, GpuLayers};
use hob::engine::llama::{LoadedModel, Weights};

use crate::home_assistant::{CONTEXT, simulated};
use crate::models;
use crate::recorded::counts;

/// 90,000 prompt tokens, of which 12,000 are computed: two minutes of two quiet cores.
const N_REQUESTS: usize = 8;

#[test]
fn the_first_requests_of_a_day_compute_what_the_simulated_engine_says() {
    let path = models::smollm2();
    let weights = Weights::On { gpu: Gpu::Off, layers: GpuLayers::All };
    let model = Arc::new(LoadedModel::load(&path, weights, None, |_| {}).unwrap());
    let counted = counts(model, CONTEXT, N_REQUESTS);
    assert_eq!(counted, counts(simulated(&path), CONTEXT, N_REQUESTS));
    let n_cached = |day: &[(usize, usize)]| day.iter().map(|(_, n_cached)| n_cached).sum::<usize>();
    assert!(counted.iter().all(|day| day.len() == N_REQUESTS && n_cached(day) > 0), "{counted:?}");
}
