//! What it takes to know what an answer to Home Assistant's tools must obey: the first time, and again.
//!
//! The tools are the longest set of the recording in `tests/it/fixtures/home-assistant/`. `MODEL` names a GGUF file, whose
//! vocabulary and template are read alone.

use std::path::PathBuf;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use hob::engine::Model;
use hob::engine::llama::{LoadedModel, Weights};
use hob::prompt::{Moment, Planner};
use hob::request::{Client, Dialect, LayoutMode, Message, Priority, Request, Role, Sampling, ToolChoice, Wanted};
use serde_json::Value;

const RECORDED: &str = include_str!("../tests/it/fixtures/home-assistant/llama_cpp.jsonl");

fn tools() -> Vec<String> {
    let bodies = RECORDED.lines().map(|line| serde_json::from_str::<Value>(line).expect("a recording is JSON"));
    let sets = bodies.filter_map(|body| Some(body["body"]["tools"].as_array()?.iter().map(Value::to_string).collect()));
    sets.max_by_key(|tools: &Vec<String>| tools.iter().map(String::len).sum::<usize>()).expect("there are tools")
}

fn request(tools: Vec<String>, tool_choice: ToolChoice) -> Request {
    Request {
        model: "model".into(),
        messages: vec![Message::text(Role::User, "Turn on the kitchen light.")],
        tools,
        sampling: Sampling::default(),
        wanted: Wanted { tool_choice, ..Wanted::default() },
        n_logprobs: None,
        max_tokens: None,
        stop: Vec::new(),
        client: Client { name: "bench".into(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: Some(LayoutMode::Off),
        priority: Priority::default(),
    }
}

fn answers(criterion: &mut Criterion) {
    let path = std::env::var_os("MODEL").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        PathBuf::from,
    );
    let model = LoadedModel::load(&path, Weights::None, None, |_| {}).expect("the model's file is there: `make model`");
    let tools = tools();
    let n_bytes: usize = tools.iter().map(String::len).sum();
    for (name, tool_choice) in [("auto", ToolChoice::Auto), ("required", ToolChoice::Required)] {
        let wanted = Wanted { tool_choice: tool_choice.clone(), ..Wanted::default() };
        let template = model.template();
        criterion.bench_function(&format!("{} tools of {n_bytes} bytes, {name}: first", tools.len()), |bencher| {
            bencher.iter(|| template.answer(&tools, &wanted, false).expect("the tools have a grammar"));
        });
        let mut planner =
            Planner::new(model.vocab(), Arc::clone(&template), "model".into(), Vec::new()).expect("no profiles");
        let (request, now) = (request(tools.clone(), tool_choice), Moment::utc(0));
        criterion.bench_function(
            &format!("{} tools of {n_bytes} bytes, {name}: planned again", tools.len()),
            |bencher| {
                bencher.iter(|| planner.plan(&request, &now).expect("the request is planned"));
            },
        );
    }
}

criterion_group!(benches, answers);
criterion_main!(benches);
