//! What the binary takes of the machine's memory: the model's file, the budgets, and little beside them, however many prompts came.

use std::path::Path;

use serde_json::json;

use super::process::{Process, configure};
use crate::models;

/// Cells of the context, rounded as llama.cpp does.
const CONTEXT: u64 = 1024;
/// SmolLM2: 30 layers, K and V of 192 numbers, two bytes each.
const CELL_BYTES: u64 = 30 * 2 * 192 * 2;
const RAM_BYTES: u64 = 16 << 20;
const BESIDE_BYTES: u64 = 64 << 20;

/// Prompts that have nothing in common but the template's beginning, each asked once; what is in RAM afterwards.
fn resident_after(folder: &Path, n_prompts: usize) -> u64 {
    configure(folder, &format!("context = {CONTEXT}\n[cache]\nram = \"16MiB\"\ndisk = \"32MiB\""));
    let process = Process::start(folder);
    for number in 0..n_prompts {
        let content = format!("{number} plus {} lamps in room {}: how many are there?", number * 7 % 31, number % 13);
        let messages = json!([{ "role": "user", "content": content }]);
        let told = process.ask(json!({ "model": "smol", "messages": messages, "temperature": 0, "max_tokens": 2 }));
        assert!(told.usage.n_prompt > told.usage.n_cached);
    }
    let resident_bytes = process.resident_bytes();
    process.stop();
    resident_bytes
}

fn assert_small_after(n_prompts: usize) {
    let folder = tempfile::tempdir().unwrap();
    let n_bytes = resident_after(folder.path(), n_prompts);
    let budgets = CONTEXT * CELL_BYTES + RAM_BYTES;
    let model = models::smollm2().metadata().unwrap().len();
    let beside = n_bytes as i64 - (model + budgets) as i64;
    eprintln!("{n_prompts} prompts: {} MiB, {} MiB beside model and budgets", n_bytes >> 20, beside >> 20);
    assert!(beside <= BESIDE_BYTES as i64, "{n_bytes} bytes, {beside} beside model and budgets");
}

#[test]
fn sixty_prompts_leave_no_more_than_model_budgets_and_64_mib() {
    assert_small_after(60);
}

#[test]
fn soak_a_thousand_prompts_leave_no_more_than_model_budgets_and_64_mib() {
    assert_small_after(1000);
}
