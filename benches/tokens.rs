//! What the planner itself costs for a household's request, the template's render nearly free: about 5,000 tokens, 30
//! tools, seen before; its tool-loop continuation; and a new system text. Then laying out and ordering alone, without render
//! and tokens, where the time stands in front of 130 states: the same request again, one at another time, and one turn more
//! of a conversation of 20.

use std::sync::Arc;
use std::time::Duration;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use hob::engine::{ChatTemplate, EngineError, PreparedTemplate, Special, Vocab};
use hob::prompt::{Layout, Moment, Planner};
use hob::request::{Client, Dialect, LayoutMode, Message, Priority, Request, Role, Sampling, Token, ToolCall, Wanted};

/// Words as tokens, with as many control tokens as Llama 3 has.
struct Words(Vec<(Token, String)>);

impl Vocab for Words {
    fn n_tokens(&self) -> usize {
        1 << 31
    }

    fn tokenize(&self, text: &str, special: Special) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            let control = self.0.iter().find(|(_, spelling)| special == Special::Parsed && rest.starts_with(spelling));
            let length = match control {
                Some((token, spelling)) => {
                    tokens.push(*token);
                    spelling.len()
                }
                None => {
                    let length = rest[1..].find([' ', '<', '\n']).map_or(rest.len(), |at| at + 1);
                    let hash = blake3::hash(&rest.as_bytes()[..length]);
                    tokens
                        .push(Token(i32::from_le_bytes(hash.as_bytes()[..4].try_into().unwrap()).wrapping_abs() | 256));
                    length
                }
            };
            rest = &rest[length..];
        }
        tokens
    }

    fn piece(&self, _: Token, _: &mut Vec<u8>) {}

    fn is_end(&self, token: Token) -> bool {
        token == Token(1)
    }

    fn bos(&self) -> Option<Token> {
        None
    }

    fn control_tokens(&self) -> &[(Token, String)] {
        &self.0
    }
}

struct ChatMl(String);

impl ChatTemplate for ChatMl {
    fn takes_tools(&self) -> bool {
        true
    }

    fn prepare(&self, tools: &[String]) -> Result<Box<dyn PreparedTemplate>, EngineError> {
        Ok(Box::new(ChatMl(tools.join("\n"))))
    }
}

impl PreparedTemplate for ChatMl {
    fn render_at(&self, messages: &[Message], _: bool, _: i64, _: &Wanted) -> Result<String, EngineError> {
        let mut text = String::with_capacity(32 << 10);
        for (index, message) in messages.iter().enumerate() {
            text.extend(["<|im_start|>", message.role.template_name(), "\n", &message.content]);
            for call in &message.tool_calls {
                text.extend(["\n<tool_call>", &call.name, &call.arguments, "</tool_call>"]);
            }
            text.extend([if index == 0 { &self.0 } else { "" }, "<|im_end|>\n"]);
        }
        text.push_str("<|im_start|>assistant\n");
        Ok(text)
    }
}

fn planner() -> Planner {
    let mut controls = vec![(Token(0), "<|im_start|>".to_string()), (Token(1), "<|im_end|>".to_string())];
    controls.extend((2..256).map(|id| (Token(id), format!("<|reserved_special_token_{id}|>"))));
    Planner::new(Arc::new(Words(controls)), Arc::new(ChatMl(String::new())), "model".into(), vec![]).unwrap()
}

fn household(system_start: &str) -> Request {
    let states = "- light.kitchen_ceiling: 'on' brightness 180, area Kitchen, a lamp above the table\n".repeat(260);
    let tool = |index: usize| {
        let text = "a parameter that says which of the household's devices is meant ".repeat(4);
        format!(
            r#"{{"type": "function", "function": {{"name": "tool_{index}", "description": "{text}", "parameters": {{}}}}}}"#
        )
    };
    Request {
        model: "model".into(),
        messages: vec![
            Message::text(Role::System, format!("{system_start}{states}")),
            Message::text(Role::User, "Is the kitchen light on?"),
            Message::text(Role::Assistant, "It is."),
            Message::text(Role::User, "Then turn it off, please."),
        ],
        tools: (0..30).map(tool).collect(),
        sampling: Sampling::default(),
        wanted: Wanted::default(),
        n_logprobs: None,
        max_tokens: None,
        stop: vec![],
        client: Client { name: "bench".into(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: None,
        priority: Priority::default(),
    }
}

fn plan(criterion: &mut Criterion) {
    let mut planner = planner();
    let request = household("");
    let n_tokens = planner.plan(&request, &Moment::utc(0)).unwrap().prompt.tokens.len();
    criterion.bench_function(&format!("plan, {n_tokens} tokens seen before"), |bencher| {
        bencher.iter(|| planner.plan(&request, &Moment::utc(0)).unwrap())
    });

    let mut continued = request.clone();
    let call =
        ToolCall { id: Some("1".into()), name: "tool_3".into(), arguments: r#"{"name": "kitchen ceiling"}"#.into() };
    continued.messages.push(Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") });
    continued.messages.push(Message::text(Role::Tool, "done"));
    criterion.bench_function("plan, tool-loop continuation", |bencher| {
        bencher.iter(|| planner.plan(&continued, &Moment::utc(0)).unwrap())
    });

    let mut minute = 0;
    criterion.bench_function("plan, new system text", |bencher| {
        bencher.iter_batched(
            || {
                minute += 1;
                household(&format!("The time is {minute}.\n"))
            },
            |request| planner.plan(&request, &Moment::utc(0)).unwrap(),
            BatchSize::SmallInput,
        )
    });
}

/// 2026-11-30 20:06:10 UTC.
const START: i64 = 1_796_069_170;

/// A home whose states differ, some of them from one minute to the next.
fn home(now: i64, turns: &[Message]) -> Request {
    let of_day = now.rem_euclid(24 * 3600);
    let time = format!("{:02}:{:02}:{:02}", of_day / 3600, of_day / 60 % 60, of_day % 60);
    let mut text = format!("You are the voice of this house.\nCurrent time: {time}\nAnswer briefly.\n\nDevices:\n");
    for device in 0..130 {
        let value = if device % 26 == 0 { now / 60 % 7 } else { 0 };
        text += &format!(
            "- names: Device {device}\n  domain: light\n  state: '{value}'\n  areas: Room {}\n  attributes:\n    \
             brightness: '{}'\n",
            device % 9,
            device * 3 % 255,
        );
    }
    let messages = [Message::text(Role::System, text)].into_iter().chain(turns.iter().cloned()).collect();
    Request { messages, ..household("") }
}

fn lay(criterion: &mut Criterion) {
    let mut planner = planner().with_layout(Layout { mode: LayoutMode::Safe, n_context_tokens: 1 << 20, file: None });
    let mut ask = move |now: i64, turns: &[Message]| planner.plan(&home(now, turns), &Moment::utc(now)).unwrap();
    let question = |n: i64| Message::text(Role::User, format!("Is light {n} on?"));
    let mut now = START;
    // What is learnt, and records of 2,000 questions.
    let mut n_tokens = 0;
    for n in 0..2000 {
        now += 61;
        n_tokens = ask(now, &[question(n)]).prompt.tokens.len();
    }
    let alone = |bencher: &mut criterion::Bencher, mut plan: Box<dyn FnMut() -> Duration + '_>| {
        bencher.iter_custom(|n| (0..n).map(|_| plan()).sum());
    };
    criterion.bench_function(&format!("lay and order, {n_tokens} tokens, again"), |bencher| {
        alone(bencher, Box::new(|| ask(now, &[question(0)]).timings.plan))
    });
    criterion.bench_function("lay and order, at another time", |bencher| {
        alone(
            bencher,
            Box::new(|| {
                now += 61;
                ask(now, &[question(now)]).timings.plan
            }),
        )
    });
    let mut turns = Vec::new();
    criterion.bench_function("lay and order, one turn more of 20", |bencher| {
        alone(
            bencher,
            Box::new(|| {
                now += 61;
                if turns.len() >= 40 {
                    turns.clear();
                }
                turns.push(question(now));
                let took = ask(now, &turns).timings.plan;
                turns.push(Message::text(Role::Assistant, "It is."));
                took
            }),
        )
    });
}

criterion_group!(benches, plan, lay);
criterion_main!(benches);
