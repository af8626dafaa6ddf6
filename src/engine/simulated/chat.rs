//! What the simulated model speaks: one token a byte, and a plain ChatML template.

use super::answers;
use crate::engine::{Answer, ChatTemplate, EngineError, PreparedTemplate, Special, Vocab};
use crate::request::{Message, Role, Token, Wanted};

/// One token a byte, and the control tokens of ChatML.
pub struct ByteVocab {
    control: Vec<(Token, String)>,
}

/// Ends a turn, and with it an answer.
const TURN_END: &str = "<|im_end|>";
const TURN_START: &str = "<|im_start|>";

impl ByteVocab {
    /// Ends a turn: the second control token.
    pub const END: Token = Token(257);

    pub fn new() -> ByteVocab {
        let control = [TURN_START, TURN_END, "<|endoftext|>"];
        ByteVocab { control: (256..).map(Token).zip(control.map(str::to_owned)).collect() }
    }
}

impl Default for ByteVocab {
    fn default() -> ByteVocab {
        ByteVocab::new()
    }
}

impl Vocab for ByteVocab {
    fn n_tokens(&self) -> usize {
        256 + self.control.len()
    }

    fn tokenize(&self, text: &str, special: Special) -> Vec<Token> {
        let mut tokens = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.bytes().next() {
            let control = self.control.iter().find(|(_, spelling)| rest.starts_with(spelling));
            match control {
                Some((token, spelling)) if special == Special::Parsed => {
                    tokens.push(*token);
                    rest = &rest[spelling.len()..];
                }
                _ => {
                    let n = rest.chars().next().map_or(1, char::len_utf8);
                    tokens.push(Token(first.into()));
                    tokens.extend(rest.bytes().take(n).skip(1).map(|byte| Token(byte.into())));
                    rest = &rest[n..];
                }
            }
        }
        tokens
    }

    fn piece(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0));
    }

    fn is_end(&self, token: Token) -> bool {
        token.0 > 256
    }

    fn bos(&self) -> Option<Token> {
        None
    }

    fn control_tokens(&self) -> &[(Token, String)] {
        &self.control
    }
}

/// A plain stand-in for a chat template: ChatML, tools behind the system text.
pub struct ChatMl {
    pub takes_tools: bool,
}

impl ChatTemplate for ChatMl {
    fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    fn prepare(&self, tools: &[String]) -> Result<Box<dyn PreparedTemplate>, EngineError> {
        let tools = if self.takes_tools { tools.to_vec() } else { Vec::new() };
        Ok(Box::new(PreparedChatMl { tools }))
    }

    fn answer(&self, tools: &[String], wanted: &Wanted, _follows_result: bool) -> Result<Answer, EngineError> {
        answers::answer(tools, wanted)
    }
}

struct PreparedChatMl {
    tools: Vec<String>,
}

impl PreparedTemplate for PreparedChatMl {
    fn render_at(&self, messages: &[Message], open_answer: bool, _: i64, _: &Wanted) -> Result<String, EngineError> {
        let (system, rest) = match messages.split_first() {
            Some((first, rest)) if matches!(first.role, Role::System | Role::Developer) => (Some(first), rest),
            _ => (None, messages),
        };
        let mut text = String::new();
        if system.is_some() || !self.tools.is_empty() {
            text += &format!("{TURN_START}system\n{}", system.map_or("", |system| &system.content));
            for tool in &self.tools {
                text += &format!("\n{tool}");
            }
            text += &format!("{TURN_END}\n");
        }
        for message in rest {
            text += &format!("{TURN_START}{}\n{}", message.role.template_name(), message.content);
            for (index, call) in message.tool_calls.iter().enumerate() {
                if index > 0 || !message.content.is_empty() {
                    text.push('\n');
                }
                text += &format!(
                    "<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>",
                    call.name, call.arguments
                );
            }
            text += &format!("{TURN_END}\n");
        }
        if open_answer {
            text += &format!("{TURN_START}assistant\n");
        }
        Ok(text)
    }
}

/// A template that prints the date, as Llama 3's does: `inner`'s text behind a line with the number of the day since 1970
/// (UTC) in a turn of its own.
pub struct Dated<T>(pub T);

impl<T: ChatTemplate> ChatTemplate for Dated<T> {
    fn takes_tools(&self) -> bool {
        self.0.takes_tools()
    }

    fn prepare(&self, tools: &[String]) -> Result<Box<dyn PreparedTemplate>, EngineError> {
        Ok(Box::new(PreparedDated(self.0.prepare(tools)?)))
    }

    fn answer(&self, tools: &[String], wanted: &Wanted, follows_result: bool) -> Result<Answer, EngineError> {
        self.0.answer(tools, wanted, follows_result)
    }
}

struct PreparedDated(Box<dyn PreparedTemplate>);

impl PreparedTemplate for PreparedDated {
    fn render_at(
        &self,
        messages: &[Message],
        open_answer: bool,
        unix_s: i64,
        wanted: &Wanted,
    ) -> Result<String, EngineError> {
        let day = unix_s.div_euclid(24 * 3600);
        let text = self.0.render_at(messages, open_answer, unix_s, wanted)?;
        Ok(format!("{TURN_START}date\nDay {day}{TURN_END}\n{text}"))
    }
}
