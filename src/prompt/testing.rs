//! Stand-ins for a vocabulary and chat templates, small enough to see through.

use std::fmt::Write as _;

use serde_json::Value;

use crate::engine::{ChatTemplate, EngineError, PreparedTemplate, Special, Vocab};
use crate::request::{Message, Role, Token, Wanted};

pub(super) const BOS: Token = Token(0);

/// Three bytes a token, counted from the start of each run of text: a cut in the middle of a run changes its tokens.
pub(super) struct Bytes {
    controls: Vec<(Token, String)>,
    has_bos: bool,
    /// White space after a control token is dropped, as some vocabularies do.
    strips: bool,
}

impl Bytes {
    pub(super) fn new() -> Bytes {
        let spellings = [
            "<s>",
            "</s>",
            "<|im_start|>",
            "<|im_end|>",
            "<start_of_turn>",
            "<end_of_turn>",
            "<|end",
            "<|end|>",
            "[INST]",
            "[/INST]",
            "<tool>",
            "<|pad|>",
        ];
        let controls = spellings.iter().enumerate().map(|(id, text)| (Token(id as i32), text.to_string())).collect();
        Bytes { controls, has_bos: false, strips: false }
    }

    pub(super) fn with_bos() -> Bytes {
        Bytes { has_bos: true, ..Bytes::new() }
    }

    pub(super) fn stripping() -> Bytes {
        Bytes { strips: true, ..Bytes::new() }
    }

    /// Control tokens as `⟦<|im_end|>⟧`, all other text as it is.
    pub(super) fn decode(&self, tokens: &[Token]) -> String {
        let mut bytes = Vec::new();
        for &token in tokens {
            match self.controls.get(token.0 as usize) {
                Some((_, spelling)) => bytes.extend(format!("⟦{spelling}⟧").bytes()),
                None => self.piece(token, &mut bytes),
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    fn control_at(&self, text: &str) -> Option<&(Token, String)> {
        self.controls
            .iter()
            .filter(|(_, spelling)| text.starts_with(spelling))
            .max_by_key(|(_, spelling)| spelling.len())
    }
}

impl Vocab for Bytes {
    fn n_tokens(&self) -> usize {
        1 << 26
    }

    fn tokenize(&self, text: &str, special: Special) -> Vec<Token> {
        let mut tokens = Vec::new();
        let mut run = Vec::new();
        let end_run = |run: &mut Vec<u8>, tokens: &mut Vec<Token>| {
            for chunk in run.chunks(3) {
                let value = chunk.iter().fold(0, |value, &byte| value << 8 | i32::from(byte));
                tokens.push(Token((chunk.len() as i32) << 24 | value));
            }
            run.clear();
        };
        let mut rest = text;
        while let Some(character) = rest.chars().next() {
            if special == Special::Parsed
                && let Some((token, spelling)) = self.control_at(rest)
            {
                end_run(&mut run, &mut tokens);
                tokens.push(*token);
                rest = &rest[spelling.len()..];
                if self.strips {
                    rest = rest.trim_start();
                }
            } else {
                run.extend(&rest.as_bytes()[..character.len_utf8()]);
                rest = &rest[character.len_utf8()..];
            }
        }
        end_run(&mut run, &mut tokens);
        tokens
    }

    fn piece(&self, token: Token, out: &mut Vec<u8>) {
        let n_bytes = (token.0 >> 24) as usize;
        out.extend(&token.0.to_be_bytes()[4 - n_bytes..]);
    }

    fn is_end(&self, token: Token) -> bool {
        token == Token(3)
    }

    fn bos(&self) -> Option<Token> {
        self.has_bos.then_some(BOS)
    }

    fn control_tokens(&self) -> &[(Token, String)] {
        &self.controls
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Style {
    /// ChatML that knows no tools.
    Plain,
    /// ChatML with tools at the end of the system text, as Qwen has them.
    ToolsAfter,
    /// ChatML with tools in a turn of their own, before the system text.
    ToolsBefore,
    /// System text and tools inside the first user's turn, as Gemma has them.
    Shared,
}

#[derive(Clone, Debug)]
pub(super) struct Template {
    style: Style,
    /// Refuses a beginning that is no user's, two messages of one role in a row, and system messages after the first.
    strict: bool,
    /// What becomes of a message's second call.
    second_call: SecondCall,
    /// Leaves out what assistants' messages hold in `<think>` tags.
    drops_thoughts: bool,
    tools: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SecondCall {
    Shown,
    Refused,
    Dropped,
}

impl Template {
    pub(super) fn new(style: Style) -> Template {
        Template { style, strict: false, second_call: SecondCall::Shown, drops_thoughts: false, tools: Vec::new() }
    }

    pub(super) fn one_call(style: Style, is_refused: bool) -> Template {
        let second_call = if is_refused { SecondCall::Refused } else { SecondCall::Dropped };
        Template { second_call, ..Template::new(style) }
    }

    pub(super) fn without_thoughts(style: Style) -> Template {
        Template { drops_thoughts: true, ..Template::new(style) }
    }

    pub(super) fn strict(style: Style) -> Template {
        Template { strict: true, ..Template::new(style) }
    }
}

impl ChatTemplate for Template {
    fn takes_tools(&self) -> bool {
        self.style != Style::Plain
    }

    fn prepare(&self, tools: &[String]) -> Result<Box<dyn PreparedTemplate>, EngineError> {
        // Real templates parse definitions and write them anew.
        let tools = tools.iter().map(|tool| as_json(tool)).collect();
        Ok(Box::new(Template { tools, ..self.clone() }))
    }
}

impl PreparedTemplate for Template {
    fn render_at(&self, messages: &[Message], open_answer: bool, _: i64, _: &Wanted) -> Result<String, EngineError> {
        if self.strict {
            let first = messages.iter().find(|message| message.role != Role::System);
            if first.is_some_and(|first| first.role != Role::User) {
                return Err(EngineError::Template("a user must begin".to_string()));
            }
            for (index, pair) in messages.windows(2).enumerate() {
                if pair[0].role == pair[1].role || pair[1].role == Role::System {
                    return Err(EngineError::Template(format!("messages[{}] must alternate", index + 1)));
                }
            }
        }
        let tools =
            if self.tools.is_empty() { String::new() } else { format!("<tools>\n{}\n</tools>", self.tools.join("\n")) };
        let (open, close, assistant) = match self.style {
            Style::Shared => ("<start_of_turn>", "<end_of_turn>\n", "model"),
            _ => ("<|im_start|>", "<|im_end|>\n", "assistant"),
        };
        let mut text = String::new();
        let mut first = String::new();
        let mut rest = messages;
        if let Some((message, others)) = messages.split_first()
            && matches!(message.role, Role::System | Role::Developer)
        {
            first = message.content.clone();
            rest = others;
        }
        if self.style == Style::ToolsBefore && !tools.is_empty() {
            write!(text, "{open}tools\n{tools}{close}").unwrap();
        } else {
            first = [first, tools].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
        }
        if self.style == Style::Shared {
            first = if first.is_empty() { first } else { first + "\n\n" };
        } else if !first.is_empty() {
            write!(text, "{open}system\n{}{close}", std::mem::take(&mut first)).unwrap();
        }
        for message in rest {
            let role = match message.role {
                Role::Assistant => assistant,
                role => role.template_name(),
            };
            let content = match message.content.split_once("</think>") {
                Some((_, content)) if self.drops_thoughts && message.role == Role::Assistant => content.trim_start(),
                _ => &message.content,
            };
            write!(text, "{open}{role}\n{}{content}", std::mem::take(&mut first)).unwrap();
            if self.style != Style::Plain {
                let n_calls = message.tool_calls.len();
                if n_calls > 1 && self.second_call == SecondCall::Refused {
                    return Err(EngineError::Template("one call at a time".into()));
                }
                let n_shown = if self.second_call == SecondCall::Dropped { n_calls.min(1) } else { n_calls };
                for call in &message.tool_calls[..n_shown] {
                    write!(text, "<call>{} {}</call>", call.name, as_json(&call.arguments)).unwrap();
                }
            }
            text.push_str(close);
        }
        if open_answer {
            writeln!(text, "{open}{assistant}").unwrap();
        }
        Ok(text)
    }
}

/// `text` parsed and written again, or as it is where it is no JSON.
fn as_json(text: &str) -> String {
    serde_json::from_str::<Value>(text).map_or_else(|_| text.to_string(), |value| value.to_string())
}
