//! What answers must obey and who reads them, by llama.cpp's own knowledge of the families' formats.
//!
//! llama.cpp derives from a template how its model calls tools and thinks: a grammar for the sampler and a parser for the text
//! (common/chat.cpp there). Here that is asked for through `chat.cpp` and put into hob's words. A template that has no place for
//! tools gets the format that the fallback teaches it.

mod bounds;
mod schema;

use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::grammar::Bound;
use super::template::{Chat, ChatHandle, LlamaTemplate, Source, Text, Tools, ToolsHandle, args, check_depth, to_json};
use super::vocab::LlamaVocab;
use crate::engine::{
    Answer, AnswerParts, AnswerReader, AnswerRules, EngineError, Grammar, GrammarOrigin, PlainReader, Special,
    ThinkingRules, Trigger, Vocab,
};
use crate::request::{Message, Role, Shape, Token, ToolCall, ToolChoice, Wanted};

/// Where a schema stands that an answer must fit.
const SCHEMA: &str = "response_format.json_schema.schema";

/// The format that `assets/tools-fallback.txt` describes in words, as a template.
const FALLBACK: &str = include_str!("../../../assets/tools-fallback.jinja");

impl LlamaTemplate {
    /// See `ChatTemplate::answer`.
    pub(super) fn answer_to(
        &self,
        tools: &[String],
        wanted: &Wanted,
        follows_result: bool,
    ) -> Result<Answer, EngineError> {
        let is_calling = !tools.is_empty() && wanted.tool_choice != ToolChoice::None;
        if let Shape::Grammar(text) = &wanted.shape {
            if is_calling {
                let reason = "cannot bind an answer that may call tools: set tool_choice to \"none\", or leave one out";
                return Err(refused("grammar", reason));
            }
            return self.under_grammar(text);
        }
        let schema = match &wanted.shape {
            Shape::Free | Shape::Grammar(_) => None,
            Shape::Json => Some(json!({ "type": "object" })),
            Shape::Schema(text) => {
                check_depth(text).map_err(|reason| refused(SCHEMA, &reason))?;
                Some(schema_of(text)?)
            }
        };
        let must_call = is_calling && wanted.tool_choice != ToolChoice::Auto;
        check_tools(tools)?;
        let chosen = chosen(tools, &wanted.tool_choice)?;
        let mut wish = json!({ "tool_choice": choice_word(&wanted.tool_choice), "parallel": !wanted.one_call });
        if let Some(schema) = schema.filter(|_| !must_call) {
            wish["schema"] = schema;
            return self.under_schema(wanted, wish, follows_result);
        }
        let ask = Ask { tools: &chosen, wanted, wish, follows_result, is_calling };
        let blamed = |by_fallback| {
            let answer = self.ask(&ask, by_fallback);
            answer.map_err(|error| if is_calling { self.blame(error, &ask, tools, by_fallback) } else { error })
        };
        if is_calling && !self.takes_tools {
            return blamed(true);
        }
        let answer = blamed(false)?;
        // llama.cpp does not know how some models call; a call that must be made is made in the format that it knows.
        if must_call && answer.rules.grammar.is_none() { self.ask(&ask, true) } else { Ok(answer) }
    }

    /// `error`, said of the first tool alone that it is true of.
    fn blame(&self, error: EngineError, ask: &Ask, tools: &[String], by_fallback: bool) -> EngineError {
        let alone = ask.tools.iter().find_map(|tool| {
            let ask = Ask { tools: std::slice::from_ref(tool), wish: ask.wish.clone(), ..*ask };
            let Err(EngineError::Wanted { reason, .. }) = self.ask(&ask, by_fallback) else { return None };
            Some((tools.iter().position(|known| known == tool)?, reason))
        });
        alone.map_or(error, |(index, reason)| refused(&format!("tools[{index}].function.parameters"), &reason))
    }

    /// A schema binds the whole answer, which then calls nothing. Where tools could be called, too, llama.cpp leaves one of both
    /// out, and with some families binds nothing at all.
    fn under_schema(&self, wanted: &Wanted, wish: Value, follows_result: bool) -> Result<Answer, EngineError> {
        let ask = Ask { tools: &[], wanted, wish, follows_result, is_calling: false };
        let binds = |answer: &Answer| answer.rules.grammar.as_ref().is_some_and(|grammar| !grammar.is_lazy);
        let answer = self.ask(&ask, false)?;
        let answer = if binds(&answer) { answer } else { self.ask(&ask, true)? };
        if binds(&answer) { Ok(answer) } else { Err(refused(place(wanted, false), "binds nothing")) }
    }

    /// `by_fallback`: in the format that the fallback teaches.
    fn ask(&self, ask: &Ask, by_fallback: bool) -> Result<Answer, EngineError> {
        let Ask { tools, wanted, wish, follows_result, is_calling } = ask;
        let place = place(wanted, *is_calling);
        let shows_tools = !tools.is_empty() && (self.takes_tools || by_fallback);
        let parsed = if shows_tools {
            Some(Tools::parse(tools).map_err(|error| refused("tools", &error.to_string()))?)
        } else {
            None
        };
        let chat = match by_fallback {
            true => Arc::clone(self.fallback()?),
            false => Arc::clone(self.with_tools.as_ref().filter(|_| shows_tools).unwrap_or(&self.plain)),
        };
        let messages = to_json(&conversation(*follows_result))?;
        let (args, wish) = (args(wanted)?, wish.to_string());
        let mut out = Text::EMPTY;
        let reader = {
            let chat = chat.lock().unwrap_or_else(PoisonError::into_inner);
            let tools = parsed.as_ref().map_or(std::ptr::null(), |tools| tools.0.as_ptr().cast_const());
            let [messages, args, wish] = [&messages, &args, &wish].map(|text| Text::lent(text));
            // SAFETY: the handles are alive, the chat's lock is held; the texts outlive the call; `out` is written.
            unsafe { hob_chat_answer(chat.0.as_ptr(), tools, messages, args, wish, &mut out) }
        };
        let text = out.take();
        let Some(reader) = NonNull::new(reader).map(Reader) else { return Err(refused(place, &text)) };
        let made: Made = serde_json::from_str(&text)
            .map_err(|error| EngineError::Template(format!("an answer's rules cannot be read: {error}")))?;
        let origin = if *is_calling { GrammarOrigin::Tools } else { GrammarOrigin::Schema };
        let opening = if by_fallback { String::new() } else { made.opening.clone() };
        let reader: Arc<dyn AnswerReader> = if made.is_plain { Arc::new(PlainReader) } else { Arc::new(reader) };
        let rules = made.rules(self.vocab.as_deref(), origin, wanted)?;
        self.check(rules.grammar.as_ref(), place)?;
        Ok(Answer { rules: Arc::new(rules), reader, opening })
    }

    /// A client's own grammar binds the whole answer.
    fn under_grammar(&self, text: &str) -> Result<Answer, EngineError> {
        let grammar = Grammar::whole(text, GrammarOrigin::Client);
        self.check(Some(&grammar), "grammar")?;
        let rules = AnswerRules { grammar: Some(grammar), ..AnswerRules::default() };
        Ok(Answer { rules: Arc::new(rules), reader: Arc::new(PlainReader), opening: String::new() })
    }

    /// A grammar that cannot be used is known before anything is computed under it.
    fn check(&self, grammar: Option<&Grammar>, place: &str) -> Result<(), EngineError> {
        let (Some(vocab), Some(grammar)) = (&self.vocab, grammar) else { return Ok(()) };
        match Bound::open(vocab, grammar) {
            Ok(_) => Ok(()),
            Err(EngineError::Sampling(reason)) => Err(refused(place, &reason)),
            Err(error) => Err(error),
        }
    }

    fn fallback(&self) -> Result<&Arc<std::sync::Mutex<Chat>>, EngineError> {
        if let Some(chat) = self.fallback.get() {
            return Ok(chat);
        }
        let source = Source { text: FALLBACK, bos: "", eos: "", strip_bos: false };
        let chat = Arc::new(std::sync::Mutex::new(Chat::open(&source)?));
        Ok(self.fallback.get_or_init(|| chat))
    }
}

/// What the other side is asked.
struct Ask<'a> {
    /// Those that may be called.
    tools: &'a [String],
    wanted: &'a Wanted,
    wish: Value,
    follows_result: bool,
    is_calling: bool,
}

/// What the other side says of an answer.
#[derive(Deserialize)]
struct Made {
    grammar: String,
    is_lazy: bool,
    triggers: Vec<MadeTrigger>,
    opening: String,
    spelled: Vec<String>,
    stops: Vec<String>,
    thinks: bool,
    thinking_start: String,
    thinking_ends: Vec<String>,
    is_plain: bool,
}

/// `type`: llama.cpp's common_grammar_trigger_type.
#[derive(Deserialize)]
struct MadeTrigger {
    r#type: u8,
    value: String,
}

impl Made {
    fn rules(
        self,
        vocab: Option<&LlamaVocab>,
        origin: GrammarOrigin,
        wanted: &Wanted,
    ) -> Result<AnswerRules, EngineError> {
        let tokens = |text: &String| vocab.map_or_else(Vec::new, |vocab| vocab.tokenize(text, Special::Parsed));
        let single = |text: &String| match tokens(text)[..] {
            [token] => Some(token),
            _ => None,
        };
        let spelled: Vec<Token> = self.spelled.iter().filter_map(single).collect();
        let trigger = |MadeTrigger { r#type, value }| match r#type {
            // A word that is one token is found at once, and nowhere in the middle of a text.
            0 | 1 => match single(&value).filter(|token| spelled.contains(token)) {
                Some(token) => Ok(Trigger::Token(token)),
                None => Ok(Trigger::Word(value)),
            },
            2 => Ok(Trigger::Pattern(value)),
            _ => Err(EngineError::Template(format!("a grammar that waits for {value:?} in a way that is not known"))),
        };
        let triggers = self.triggers.into_iter().map(trigger).collect::<Result<_, _>>()?;
        let grammar = (!self.grammar.is_empty()).then(|| Grammar {
            text: adapted(&self.grammar, !self.is_lazy, wanted.one_call),
            origin,
            is_lazy: self.is_lazy,
            triggers,
            opening: self.opening.clone(),
        });
        let ends: Vec<Vec<Token>> = self.thinking_ends.iter().map(tokens).filter(|end| !end.is_empty()).collect();
        let thinking = ThinkingRules {
            start: tokens(&self.thinking_start),
            ends,
            budget: wanted.thinking.budget,
            opening: self.opening,
        };
        let can_end = self.thinks && !thinking.start.is_empty() && !thinking.ends.is_empty();
        Ok(AnswerRules { grammar, spelled, stops: self.stops, thinking: Some(thinking).filter(|_| can_end) })
    }
}

/// `grammar`, as llama.cpp made it, but for two rules that are wider than what was asked for: `at_once` and only `one_call`.
fn adapted(grammar: &str, at_once: bool, one_call: bool) -> String {
    let line = |line: &str| match line {
        // What gpt-oss says between thinking and a call.
        "any ::= preamble | analysis" if at_once => "any ::= analysis".to_owned(),
        // Where calls follow each other without a frame around all, the number of calls was not asked for.
        "tool-calls ::= (tool-call space)+" | "tool-calls ::= (tool-call? space)+" if one_call => {
            "tool-calls ::= tool-call space".to_owned()
        }
        line => match line.strip_prefix("root ::= ").filter(|_| at_once) {
            Some(root) => format!("root ::= {}", without_preamble(root)),
            None => line.to_owned(),
        },
    };
    grammar.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// A root that demands a call lets a model talk before it, for as long as it likes; without that the answer begins with the
/// call's opening. llama.cpp writes such text as `until-NUMBER`, or with a `?`; within brackets it is what was thought, unless
/// thinking has ended just before it.
fn without_preamble(root: &str) -> String {
    let is_until = |word: &str| {
        let number = word.strip_prefix("until-").map(|rest| rest.trim_end_matches('?'));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let (mut depth, mut is_quoted, mut words) = (0_usize, false, Vec::new());
    for word in root.split(' ') {
        let has_thought = words.last().is_some_and(|last: &&str| last.ends_with(")?"));
        if is_quoted || !is_until(word) || (depth > 0 && !has_thought) {
            words.push(word);
        }
        let mut is_escaped = false;
        for letter in word.chars() {
            match letter {
                _ if is_escaped => is_escaped = false,
                '\\' => is_escaped = true,
                '"' => is_quoted = !is_quoted,
                '(' if !is_quoted => depth += 1,
                ')' if !is_quoted => depth = depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    words.join(" ")
}

/// A parser on the other side.
#[derive(Debug)]
struct Reader(NonNull<ReaderHandle>);

// SAFETY: plain memory without ties to a thread, never changed after it was made.
unsafe impl Send for Reader {}
// SAFETY: as above: reading only reads it.
unsafe impl Sync for Reader {}

impl AnswerReader for Reader {
    /// Of a beginning, too, llama.cpp's parser tells what it holds, a half mark excepted.
    fn read(&self, text: &str, _is_whole: bool) -> Result<AnswerParts, EngineError> {
        #[derive(Deserialize)]
        struct Parts {
            reasoning: String,
            content: String,
            calls: Vec<Call>,
        }
        #[derive(Deserialize)]
        struct Call {
            name: String,
            arguments: String,
            id: String,
        }

        let unreadable = |reason: String| EngineError::Template(format!("an answer cannot be read: {reason}"));
        if is_too_deep(text) {
            return Err(unreadable(format!("it has more than {ANSWER_DEPTH_MAX} open brackets")));
        }
        let mut out = Text::EMPTY;
        // SAFETY: the reader is alive; `text` outlives the call; `out` is written.
        let is_read = unsafe { hob_chat_read(self.0.as_ptr(), Text::lent(text), &mut out) };
        let read = out.take();
        if !is_read {
            return Err(unreadable(read));
        }
        let parts: Option<Parts> = serde_json::from_str(&read).map_err(|error| unreadable(error.to_string()))?;
        let Parts { reasoning, content, calls } = parts.ok_or_else(|| unreadable("it has another form".into()))?;
        let call =
            |Call { name, arguments, id }| ToolCall { id: Some(id).filter(|id| !id.is_empty()), name, arguments };
        Ok(AnswerParts { reasoning, content, calls: calls.into_iter().map(call).collect() })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // SAFETY: made by `hob_chat_answer`, freed once.
        unsafe { hob_chat_reader_free(self.0.as_ptr()) }
    }
}

/// llama.cpp reads values in each other by recursion, without a limit of its own, and a small model may open brackets for ever.
const ANSWER_DEPTH_MAX: usize = 200;

/// Whether more brackets stand open than can be read. Those in texts count, too: where a text begins is the format's to say.
fn is_too_deep(text: &str) -> bool {
    let mut depth = 0_usize;
    text.bytes().any(|byte| {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > ANSWER_DEPTH_MAX
    })
}

/// A conversation that ends as the request's does.
fn conversation(follows_result: bool) -> Vec<Message> {
    let mut messages = vec![Message::text(Role::User, "Hello")];
    if follows_result {
        let call = ToolCall { id: Some("call00000".into()), name: "call".into(), arguments: "{}".into() };
        let calling = Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") };
        let result = Message {
            tool_call_id: Some("call00000".into()),
            name: Some("call".into()),
            ..Message::text(Role::Tool, "{}")
        };
        messages.extend([calling, result]);
    }
    messages
}

/// The tools that may be called: all, or the one that was named. The prompt shows all in any case.
fn chosen(tools: &[String], choice: &ToolChoice) -> Result<Vec<String>, EngineError> {
    let ToolChoice::Named(wanted) = choice else { return Ok(tools.to_vec()) };
    let is_it = |tool: &&String| {
        serde_json::from_str::<Value>(tool).is_ok_and(|tool| tool["function"]["name"].as_str() == Some(wanted))
    };
    match tools.iter().find(is_it) {
        Some(tool) => Ok(vec![tool.clone()]),
        None => Err(refused("tool_choice", &format!("there is no tool `{wanted}`"))),
    }
}

/// Whether llama.cpp can take what the tools say of their parameters.
fn check_tools(tools: &[String]) -> Result<(), EngineError> {
    for (index, tool) in tools.iter().enumerate() {
        check_depth(tool).map_err(|reason| refused(&format!("tools[{index}]"), &reason))?;
        // What is no JSON, and no tool, is told of when it is parsed.
        let Ok(tool) = serde_json::from_str::<Value>(tool) else { continue };
        bounds::check(&tool["function"]["parameters"])
            .map_err(|reason| refused(&format!("tools[{index}].function.parameters"), &reason))?;
    }
    Ok(())
}

fn choice_word(choice: &ToolChoice) -> &'static str {
    match choice {
        ToolChoice::Auto => "auto",
        ToolChoice::None => "none",
        ToolChoice::Required | ToolChoice::Named(_) => "required",
    }
}

fn schema_of(text: &str) -> Result<Value, EngineError> {
    let schema: Value = serde_json::from_str(text).map_err(|error| refused(SCHEMA, &format!("is no JSON: {error}")))?;
    if !schema.is_object() {
        return Err(refused(SCHEMA, "must be an object"));
    }
    bounds::check(&schema).and_then(|()| schema::check(&schema)).map_err(|reason| refused(SCHEMA, &reason))?;
    // llama.cpp takes one without keywords for none; what allows any JSON text binds to JSON all the same.
    Ok(if schema == json!({}) { json!({ "title": "" }) } else { schema })
}

/// What to blame when an answer's rules cannot be made.
fn place(wanted: &Wanted, is_calling: bool) -> &'static str {
    match wanted.shape {
        Shape::Schema(_) => SCHEMA,
        Shape::Json => "response_format",
        Shape::Grammar(_) => "grammar",
        Shape::Free if is_calling => "tools",
        Shape::Free => "messages",
    }
}

fn refused(place: &str, reason: &str) -> EngineError {
    EngineError::Wanted { place: place.to_owned(), reason: reason.trim().to_owned() }
}

#[repr(C)]
struct ReaderHandle {
    _private: [u8; 0],
}

// chat.cpp; as there.
unsafe extern "C" {
    fn hob_chat_answer(
        chat: *mut ChatHandle,
        tools: *const ToolsHandle,
        messages: Text,
        args: Text,
        wanted: Text,
        out: *mut Text,
    ) -> *mut ReaderHandle;
    fn hob_chat_read(reader: *const ReaderHandle, text: Text, out: *mut Text) -> bool;
    fn hob_chat_reader_free(reader: *mut ReaderHandle);
}

#[cfg(test)]
mod hazards;
#[cfg(test)]
mod tests;
