//! The daemon as a process that ends between a tool's call and its result: killed, or told to stop. What it had learnt and not
//! written is lost then, and costs tokens; what it says next must be as true as before.
//!
//! The process plans as a planner in this one does that knows as much: the counts of tokens tell.

use std::sync::Arc;

use hob::engine::llama::{LoadedModel, Weights};
use hob::engine::{Model, Vocab};
use hob::prompt::{Cause, Layout, Moment, Planned, Planner};
use hob::request::{Client, Dialect, LayoutMode, Message, Priority, Request, Role, Sampling, Wanted};
use serde_json::{Value, json};

use super::process::{Process, configure};
use crate::house::Usage;
use crate::models;

const CONTEXT: usize = 2048;

fn ask(process: &Process, messages: &[Message]) -> Usage {
    let messages: Vec<Value> = messages
        .iter()
        .map(|message| json!({ "role": message.role.template_name(), "content": message.content }))
        .collect();
    process.ask(json!({ "model": "smol", "messages": messages, "max_tokens": 1, "temperature": 0 })).usage
}

/// A planner that knows nothing yet.
fn planner(model: &LoadedModel) -> Planner {
    let layout = Layout { mode: LayoutMode::Safe, n_context_tokens: CONTEXT, file: None };
    Planner::new(model.vocab(), model.template(), "smol".into(), vec![]).unwrap().with_layout(layout)
}

fn plan(planner: &mut Planner, messages: &[Message]) -> Planned {
    let request = Request {
        model: "smol".into(),
        messages: messages.to_vec(),
        tools: vec![],
        sampling: Sampling::default(),
        wanted: Wanted::default(),
        n_logprobs: None,
        max_tokens: None,
        stop: vec![],
        client: Client { name: "127.0.0.1".into(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: None,
        priority: Priority::default(),
    };
    planner.plan(&request, &Moment::now()).unwrap()
}

fn read(vocab: &Arc<dyn Vocab>, planned: &Planned) -> String {
    let mut bytes = Vec::new();
    planned.prompt.tokens.iter().for_each(|&token| vocab.piece(token, &mut bytes));
    String::from_utf8(bytes).unwrap()
}

/// The system text of a request made in turn `nth`.
fn system(nth: usize) -> Message {
    let rules = "You are the voice of this house and answer briefly.\n\nUse the tools that you are given.";
    Message::text(Role::System, format!("request id: 0f8fad5b-d9cb-469f-a165-{nth:012}\n{rules}"))
}

/// `n` messages of a conversation whose every turn calls a tool.
fn turns(n: usize) -> Vec<Message> {
    let messages = (0..n).map(|at| match at % 4 {
        0 => Message::text(Role::User, format!("Turn on lamp {at}.")),
        1 => Message::text(Role::Assistant, "<tool_call>\n{\"name\": \"light\", \"arguments\": {}}\n</tool_call>"),
        2 => Message::text(Role::Tool, "done"),
        _ => Message::text(Role::Assistant, "It is on."),
    });
    [system(n / 4)].into_iter().chain(messages).collect()
}

#[test]
fn an_end_between_call_and_result_costs_tokens_and_no_truth() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), &format!("context = {CONTEXT}\n[layout]\nmode = \"safe\""));
    let model = LoadedModel::load(&models::smollm2(), Weights::None, None, |_| {}).unwrap();
    let last_id = |planned: &Planned| {
        let text = read(&model.vocab(), planned);
        text.rsplit_once("request id: ").map(|(_, rest)| rest.lines().next().unwrap_or_default().to_owned())
    };
    let id = |nth: usize| Some(format!("0f8fad5b-d9cb-469f-a165-{nth:012}"));

    let process = Process::start(folder.path());
    ask(&process, &turns(1));
    process.kill();
    assert!(!folder.path().join("state/layout").exists(), "it was killed before it wrote anything");

    // The result comes to one that knows nothing of the question.
    let process = Process::start(folder.path());
    let mut known = planner(&model);
    let planned = plan(&mut known, &turns(3));
    assert_eq!((planned.live_cause, last_id(&planned)), (Cause::Trimmed, id(0)));
    let usage = ask(&process, &turns(3));
    assert_eq!((usage.n_prompt, usage.n_cached), (planned.prompt.tokens.len(), 0));
    // And goes on from there.
    let question = plan(&mut known, &turns(5));
    assert_eq!((question.live_cause, last_id(&question)), (Cause::Appended, id(1)));
    assert!(question.prompt.tokens.starts_with(&planned.prompt.tokens));
    let usage = ask(&process, &turns(5));
    assert_eq!(usage.n_prompt, question.prompt.tokens.len());
    assert!(usage.n_cached >= planned.prompt.tokens.len(), "{usage:?}");
    process.stop();

    // What was written when it was told to stop is the past of the next result.
    let process = Process::start(folder.path());
    let planned = plan(&mut known, &turns(7));
    assert_eq!((planned.live_cause, last_id(&planned)), (Cause::Appended, id(1)));
    let without = plan(&mut planner(&model), &turns(7));
    assert!(without.prompt.tokens.len() < planned.prompt.tokens.len(), "both ids are in what was written");
    assert_eq!(ask(&process, &turns(7)).n_prompt, planned.prompt.tokens.len());
    process.stop();
}
