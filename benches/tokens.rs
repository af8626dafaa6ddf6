//! What the planner itself costs for a household's request, the template's render nearly free: about 5,000 tokens, 30
//! tools, seen before; its tool-loop continuation; and a new system text.

use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use hob::engine::{ChatTemplate, EngineError, PreparedTemplate, Special, Vocab};
use hob::prompt::{Moment, Planner};
use hob::request::{Client, Dialect, Message, Request, Role, Sampling, Token, ToolCall};

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
    fn render(&self, messages: &[Message], _open_answer: bool) -> Result<String, EngineError> {
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
        max_tokens: None,
        stop: vec![],
        client: Client { name: "bench".into(), salt: None, dialect: Dialect::OpenAi },
        conversation: None,
        layout: None,
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

criterion_group!(benches, plan);
criterion_main!(benches);
