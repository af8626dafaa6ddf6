//! The planner through its own door: rendered prompts, cuts, pins, what stays text, what is refused.

mod dates;
mod house_live;
mod layout;
mod live;
mod properties;
mod regions;
mod tools;
mod typed;

use std::path::Path;
use std::sync::Arc;

use super::testing::{BOS, Bytes, Style, Template};
use super::*;
use crate::engine::{Special, Vocab};
use crate::request::{
    AdapterWish, Client, Dialect, Message, Priority, Role, Sampling, Scale, ToolCall, Wanted, WhichAdapter,
};

const NOW: Moment = Moment::utc(0);
const LIGHT: &str = r#"{"type": "function", "function": {"name": "light", "description": "Switches."}}"#;
const CLOCK: &str = r#"{"type": "function", "function": {"name": "clock"}}"#;

#[test]
fn an_unknown_model_is_refused_with_the_known_names() {
    let error = planner(Bytes::new(), Template::new(Style::Plain), vec![house()])
        .plan(&request("gpt", &[user("Hi")], &[]), &NOW)
        .unwrap_err();
    insta::assert_snapshot!(error, @"model `gpt` is not here; there are: house, model");
}

#[test]
fn what_the_template_refuses_is_the_clients_to_mend() {
    let error = planner(Bytes::new(), Template::strict(Style::ToolsAfter), vec![])
        .plan(&request("model", &[user("Hi"), user("again")], &[]), &NOW)
        .unwrap_err();
    insta::assert_snapshot!(error, @"the model's chat template refuses these messages: messages[1] must alternate");
}

#[test]
fn a_history_whose_beginning_was_trimmed_is_opened_where_the_template_refuses_it_and_only_there() {
    let trimmed = [system("Be brief."), assistant("It is on."), user("Thanks")];
    let text = |template| {
        let planned = planner(Bytes::new(), template, vec![house()]).plan(&request("model", &trimmed, &[]), &NOW);
        show(&planned.unwrap())
    };
    insta::assert_snapshot!(text(Template::strict(Style::ToolsAfter)), @r"
    ⟦<|im_start|>⟧system
    Be brief.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧✂user
    …⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    It is on.⟦<|im_end|>⟧
    ⟦<|im_start|>⟧user
    Thanks⟦<|im_end|>⟧
    ⟦<|im_start|>⟧assistant
    ---
    Session client system: 9 ✂
    Turn history: 12
    Turn question: 6
    ");
    assert!(!text(Template::new(Style::ToolsAfter)).contains('…'));

    // What is wrong besides is told as it was sent.
    let wrong = [assistant("It is on."), user("Thanks"), user("again")];
    let error = planner(Bytes::new(), Template::strict(Style::ToolsAfter), vec![])
        .plan(&request("model", &wrong, &[]), &NOW)
        .unwrap_err();
    insta::assert_snapshot!(error, @"the model's chat template refuses these messages: a user must begin");
}

#[test]
fn a_prompt_has_exactly_one_bos() {
    let mut planner = planner(Bytes::with_bos(), Template::new(Style::ToolsAfter), vec![house()]);
    let planned = planner.plan(&request("house", &[user("Hi")], &[]), &NOW).unwrap();
    assert_eq!(planned.prompt.tokens.iter().filter(|&&token| token == BOS).count(), 1);
    assert_eq!(planned.prompt.tokens[0], BOS);
    assert_eq!(planner.pins().unwrap()[0].prompt.tokens[0], BOS);
}

#[test]
fn the_requests_limit_wins_over_the_profiles() {
    let mut limited = request("house", &[user("Hi")], &[]);
    assert_eq!(plan(Style::Plain, limited.clone()).max_tokens, Some(512));
    limited.max_tokens = Some(7);
    assert_eq!(plan(Style::Plain, limited).max_tokens, Some(7));
}

#[tokio::test]
async fn the_thread_answers_until_the_last_handle_is_gone() {
    let (handle, inbox) = PlannerHandle::new(4);
    let planner = planner(Bytes::new(), Template::new(Style::Plain), vec![house()]);
    let thread = std::thread::spawn(move || planner.run(inbox));
    let planned = handle.clone().plan(request("house", &[user("Hi")], &[])).await.unwrap();
    assert_eq!(planned.profile.as_deref(), Some("house"));
    let failure = handle.plan(request("gpt", &[], &[])).await.unwrap_err();
    assert!(matches!(failure, PlanFailure::Prompt(PromptError::UnknownModel { .. })));
    drop(handle);
    thread.join().unwrap();
}

#[tokio::test]
async fn a_full_inbox_is_busy_and_a_closed_one_has_stopped() {
    let (handle, inbox) = PlannerHandle::new(1);
    let waiting = tokio::spawn({
        let handle = handle.clone();
        async move { handle.plan(request("model", &[], &[])).await }
    });
    tokio::task::yield_now().await;
    assert!(matches!(handle.plan(request("model", &[], &[])).await, Err(PlanFailure::Busy)));
    drop(inbox);
    assert!(matches!(waiting.await.unwrap(), Err(PlanFailure::Stopped)));
    assert!(matches!(handle.plan(request("model", &[], &[])).await, Err(PlanFailure::Stopped)));
}

fn house() -> Profile {
    let document = |title: &str, text: &str| Document { title: title.into(), text: text.into() };
    Profile {
        name: "house".into(),
        system: "Be kind.\n".into(),
        tools: vec![LIGHT.into()],
        documents: vec![document("handbook", "The key is under the mat.\n"), document("bins", "Paper: Monday.")],
        max_tokens: Some(512),
        ..Profile::default()
    }
}

fn planner(vocab: Bytes, template: Template, profiles: Vec<Profile>) -> Planner {
    Planner::new(Arc::new(vocab), Arc::new(template), "model".into(), profiles).unwrap()
}

fn plan(style: Style, request: Request) -> Planned {
    planner(Bytes::new(), Template::new(style), vec![house()]).plan(&request, &NOW).unwrap()
}

fn request(model: &str, messages: &[Message], tools: &[&str]) -> Request {
    Request {
        model: model.into(),
        messages: messages.to_vec(),
        tools: tools.iter().map(|tool| tool.to_string()).collect(),
        sampling: Sampling::default(),
        wanted: Wanted::default(),
        n_logprobs: None,
        max_tokens: None,
        stop: vec![],
        client: Client { name: "test".into(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: None,
        priority: Priority::default(),
    }
}

fn system(text: &str) -> Message {
    Message::text(Role::System, text)
}

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

fn assistant(text: &str) -> Message {
    Message::text(Role::Assistant, text)
}

fn tool(text: &str) -> Message {
    Message { tool_call_id: Some("1".into()), ..Message::text(Role::Tool, text) }
}

fn call(name: &str, arguments: &str) -> ToolCall {
    ToolCall { id: None, name: name.into(), arguments: arguments.into() }
}

/// The prompt's text with `✂` at cuts, then its sections.
fn show(planned: &Planned) -> String {
    let vocab = Bytes::new();
    let mut shown = String::new();
    let mut start = 0;
    for &cut in &planned.prompt.cuts {
        shown += &vocab.decode(&planned.prompt.tokens[start..cut]);
        shown += "✂";
        start = cut;
    }
    shown += &vocab.decode(&planned.prompt.tokens[start..]);
    shown += "---\n";
    for Section { name, class, n_bytes, cut } in &planned.sections {
        let cut = if cut.is_some() { " ✂" } else { "" };
        shown += &format!("{class:?} {name}: {n_bytes}{cut}\n");
    }
    shown
}

#[test]
fn a_request_names_its_adapters_or_its_profile_does_or_the_default_ones_count() {
    let known = |name: &str, is_default| KnownAdapter { name: name.into(), scale: Scale::ONE, is_default };
    let own = AdapterSet::NONE.with(0, Scale::ONE);
    let profiles = vec![
        Profile { adapters: Some(own), ..house() },
        Profile { name: "kids".into(), ..house() },
        Profile { name: "plain".into(), adapters: Some(AdapterSet::NONE), ..house() },
    ];
    let planner = planner(Bytes::new(), Template::new(Style::Plain), profiles);
    let mut planner = planner.with_adapters(vec![known("butler", false), known("pirate", true)]);
    let default = AdapterSet::NONE.with(1, Scale::ONE);
    let wish = |number, scale: f32| AdapterWish { which: WhichAdapter::Number(number), scale: Scale::new(scale) };
    let two = AdapterSet::NONE.with(0, Scale::new(2.0).unwrap());
    let mut adapters = |model: &str, wishes: Option<Vec<AdapterWish>>| {
        let mut request = request(model, &[user("Hi")], &[]);
        request.wanted.adapters = wishes;
        planner.plan(&request, &NOW).map(|planned| planned.adapters).map_err(|error| error.to_string())
    };
    for (model, silent) in [("house", own), ("kids", default), ("plain", AdapterSet::NONE), ("model", default)] {
        assert_eq!(adapters(model, None), Ok(silent), "{model}");
        assert_eq!(adapters(model, Some(vec![wish(0, 2.0)])), Ok(two), "{model}");
        assert_eq!(adapters(model, Some(vec![])), Ok(AdapterSet::NONE), "{model}");
    }
    let refused = adapters("house", Some(vec![wish(2, 1.0)])).unwrap_err();
    assert_eq!(refused, "lora[0]: an adapter 2 is not here; there are: 0 (butler), 1 (pirate)");
    let pins: Vec<_> = planner.pins().unwrap().into_iter().map(|head| head.adapters).collect();
    assert_eq!(pins, [own, default, AdapterSet::NONE], "each is kept warm under what its requests are computed under");
}
