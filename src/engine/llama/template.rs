//! Defines `LlamaTemplate`: the model's chat template, rendered by llama.cpp's own Jinja.
//!
//! A *template* is a small program in the model's file that turns messages and tools into the prompt's text. Rendering
//! goes through `chat.cpp`; here are the checks in front of it and the JSON in between. Nothing is guessed: a template
//! that is missing or does not parse is an error, never another model's format.

use std::ffi::c_char;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::vocab::LlamaVocab;
use crate::engine::{Answer, ChatTemplate, EngineError, PreparedTemplate};
use crate::request::{Message, Role, Thinking, Wanted};

/// The template's source and what it may name.
pub(super) struct Source<'a> {
    pub(super) text: &'a str,
    pub(super) bos: &'a str,
    pub(super) eos: &'a str,
    /// Whether prompts of this model begin with BOS anyway, so that the text need not.
    pub(super) strip_bos: bool,
}

pub(super) struct LlamaTemplate {
    pub(super) plain: Arc<Mutex<Chat>>,
    /// The file's variant for requests with tools, if it has one.
    pub(super) with_tools: Option<Arc<Mutex<Chat>>>,
    pub(super) takes_tools: bool,
    /// The format of tools for a template that has no place for them; opened when it is first needed.
    pub(super) fallback: OnceLock<Arc<Mutex<Chat>>>,
    /// `None`: a template by itself, whose answers nobody samples.
    pub(super) vocab: Option<Arc<LlamaVocab>>,
}

impl LlamaTemplate {
    pub(super) fn open(plain: &Source, with_tools: Option<&Source>) -> Result<LlamaTemplate, EngineError> {
        let open = |source: &Source| Chat::open(source).map(|chat| Arc::new(Mutex::new(chat)));
        let mut template = LlamaTemplate {
            plain: open(plain)?,
            with_tools: with_tools.map(open).transpose()?,
            takes_tools: false,
            fallback: OnceLock::new(),
            vocab: None,
        };
        template.takes_tools = template.shows_tools();
        Ok(template)
    }

    /// With the vocabulary that its answers are sampled from.
    pub(super) fn with_vocab(self, vocab: Arc<LlamaVocab>) -> LlamaTemplate {
        LlamaTemplate { vocab: Some(vocab), ..self }
    }

    /// Renders once with a marked tool and looks for the mark. A template that refuses tools has no place for them.
    fn shows_tools(&self) -> bool {
        const MARK: &str = "hob_marked_tool";
        let tool = json!({ "type": "function", "function": { "name": MARK, "description": "", "parameters": { "type": "object", "properties": {} } } });
        let rendered = self
            .prepare(&[tool.to_string()])
            .and_then(|prepared| prepared.render(&[Message::text(Role::User, "Hello")], true));
        rendered.is_ok_and(|text| text.contains(MARK))
    }

    fn prepare_typed(&self, tools: &[String]) -> Result<Prepared, EngineError> {
        if tools.is_empty() {
            return Ok(Prepared { chat: self.plain.clone(), tools: None });
        }
        for (index, tool) in tools.iter().enumerate() {
            let checked = match tool.trim_start().starts_with('{') {
                true => check_depth(tool),
                false => Err("is no JSON object".into()),
            };
            checked.map_err(|reason| EngineError::Template(format!("tools[{index}]: {reason}")))?;
        }
        let chat = self.with_tools.as_ref().unwrap_or(&self.plain).clone();
        Ok(Prepared { chat, tools: Some(Tools::parse(tools)?) })
    }
}

impl ChatTemplate for LlamaTemplate {
    fn takes_tools(&self) -> bool {
        self.takes_tools
    }

    fn prepare(&self, tools: &[String]) -> Result<Box<dyn PreparedTemplate>, EngineError> {
        Ok(Box::new(self.prepare_typed(tools)?))
    }

    fn switches_thinking(&self) -> bool {
        let rendered = |is_on| {
            let wanted =
                Wanted { thinking: Thinking { is_on: Some(is_on), ..Thinking::default() }, ..Wanted::default() };
            let prepared = self.prepare_typed(&[]).ok()?;
            prepared.render_at(&[Message::text(Role::User, "Hello")], true, 0, &wanted).ok()
        };
        rendered(true) != rendered(false)
    }

    fn answer(&self, tools: &[String], wanted: &Wanted, follows_result: bool) -> Result<Answer, EngineError> {
        self.answer_to(tools, wanted, follows_result)
    }
}

struct Prepared {
    chat: Arc<Mutex<Chat>>,
    tools: Option<Tools>,
}

impl Prepared {
    /// `call`: the function of the other side that renders.
    fn render_by(
        &self,
        messages: &[Message],
        call: impl FnOnce(*const ChatHandle, *const ToolsHandle, Text, *mut Text) -> bool,
    ) -> Result<String, EngineError> {
        let messages = to_json(messages)?;
        let tools = self.tools.as_ref().map_or(std::ptr::null(), |tools| tools.0.as_ptr());
        let mut out = Text::EMPTY;
        // A panic while the lock is held leaves the template as it was: rendering does not change it.
        let chat = self.chat.lock().unwrap_or_else(PoisonError::into_inner);
        let is_rendered = call(chat.0.as_ptr(), tools, Text::lent(&messages), &mut out);
        let text = out.take();
        if is_rendered { Ok(text) } else { Err(EngineError::Template(innermost(&text))) }
    }
}

impl PreparedTemplate for Prepared {
    fn render_at(
        &self,
        messages: &[Message],
        open_answer: bool,
        unix_s: i64,
        wanted: &Wanted,
    ) -> Result<String, EngineError> {
        let args = args(wanted)?;
        self.render_by(messages, |chat, tools, messages, out| {
            // SAFETY: both handles are alive and used by this thread alone; the texts outlive the call; `out` is written.
            unsafe { hob_chat_direct(chat, tools, messages, Text::lent(&args), open_answer, unix_s, out) }
        })
    }
}

/// Arguments stay text; templates that want an object get it parsed on the other side, keys in their order.
pub(super) fn to_json(messages: &[Message]) -> Result<String, EngineError> {
    let to_json = |message: &Message| {
        let mut json = json!({ "role": message.role.template_name(), "content": message.content });
        if let Some(reasoning) = &message.reasoning {
            json["reasoning_content"] = reasoning.as_str().into();
        }
        if let Some(name) = &message.name {
            json["name"] = name.as_str().into();
        }
        if let Some(id) = &message.tool_call_id {
            json["tool_call_id"] = id.as_str().into();
        }
        let calls = message.tool_calls.iter().map(|call| {
            check_depth(&call.arguments)?;
            // A call without arguments is often sent with an empty text, which is no JSON.
            let arguments = if call.arguments.trim().is_empty() { "{}" } else { &call.arguments };
            let mut json = json!({ "type": "function", "function": { "name": call.name, "arguments": arguments } });
            if let Some(id) = &call.id {
                json["id"] = id.as_str().into();
            }
            Ok(json)
        });
        let calls: Vec<Value> = calls.collect::<Result<_, String>>()?;
        if !calls.is_empty() {
            json["tool_calls"] = calls.into();
        }
        Ok(json)
    };
    let messages = messages.iter().enumerate().map(|(index, message)| {
        to_json(message).map_err(|reason: String| EngineError::Template(format!("messages[{index}]: {reason}")))
    });
    Ok(Value::Array(messages.collect::<Result<_, _>>()?).to_string())
}

/// Names that a template gets its prompt's parts by: no client may set them.
const OWN_NAMES: [&str; 8] =
    ["messages", "tools", "bos_token", "eos_token", "add_generation_prompt", "datetime", "date_string", "hob_now"];

/// What a template may ask for by name, as a JSON object. The client's own word for thinking goes before the general one.
pub(super) fn args(wanted: &Wanted) -> Result<String, EngineError> {
    let mut args = serde_json::Map::new();
    if let Some(is_on) = wanted.thinking.is_on {
        args.insert("enable_thinking".into(), is_on.into());
    }
    if let Some(effort) = &wanted.thinking.effort {
        args.insert("reasoning_effort".into(), effort.as_str().into());
    }
    for (name, json) in &wanted.template_args {
        let refused = |reason: &str| EngineError::Wanted {
            place: format!("chat_template_kwargs.{name}"),
            reason: reason.to_owned(),
        };
        if OWN_NAMES.contains(&name.as_str()) {
            return Err(refused("is not a client's to set"));
        }
        check_depth(json).map_err(|reason| refused(&reason))?;
        let value = serde_json::from_str(json).map_err(|_| refused("is no JSON"))?;
        args.insert(name.clone(), value);
    }
    Ok(Value::Object(args).to_string())
}

/// JSON nested deeper than this is refused: llama.cpp walks it by recursion, without a limit of its own.
const DEPTH_MAX: usize = 128;

pub(super) fn check_depth(json: &str) -> Result<(), String> {
    let (mut depth, mut is_text, mut is_escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            b'[' | b'{' if !is_text => depth += 1,
            b']' | b'}' if !is_text => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return Err(format!("JSON nested deeper than {DEPTH_MAX}"));
        }
    }
    Ok(())
}

/// llama.cpp wraps an error in where it happened, with lines of the template; the cause stands last.
fn innermost(error: &str) -> String {
    let cause = error.rsplit_once("\nError: ").map_or(error, |(_, cause)| cause);
    cause.trim().trim_start_matches("Jinja Exception: ").to_owned()
}

/// A parsed template on the other side.
pub(super) struct Chat(pub(super) NonNull<ChatHandle>);

// SAFETY: the handle is plain memory without ties to a thread; the mutex around it keeps users apart.
unsafe impl Send for Chat {}

impl Chat {
    pub(super) fn open(source: &Source) -> Result<Chat, EngineError> {
        // llama.cpp takes some bare words for the names of built-in templates.
        if !source.text.contains("{{") && !source.text.contains("{%") {
            return Err(EngineError::Template("holds no Jinja".into()));
        }
        let (text, bos, eos) = (Text::lent(source.text), Text::lent(source.bos), Text::lent(source.eos));
        let mut error = Text::EMPTY;
        // SAFETY: the texts outlive the call, which copies them; `error` is written when null comes back.
        let chat = unsafe { hob_chat_open(text, bos, eos, source.strip_bos, &mut error) };
        NonNull::new(chat)
            .map(Chat)
            .ok_or_else(|| EngineError::Template(format!("does not parse: {}", error.take().trim())))
    }
}

impl Drop for Chat {
    fn drop(&mut self) {
        // SAFETY: made by `hob_chat_open`, closed once.
        unsafe { hob_chat_close(self.0.as_ptr()) }
    }
}

/// Parsed tool definitions on the other side.
pub(super) struct Tools(pub(super) NonNull<ToolsHandle>);

// SAFETY: plain memory without ties to a thread, owned by one `Prepared`, which is not `Sync`.
unsafe impl Send for Tools {}

impl Tools {
    pub(super) fn parse(tools: &[String]) -> Result<Tools, EngineError> {
        let json = format!("[{}]", tools.join(","));
        let mut error = Text::EMPTY;
        // SAFETY: the text outlives the call, which copies it; `error` is written when null comes back.
        let tools = unsafe { hob_chat_tools_parse(Text::lent(&json), &mut error) };
        NonNull::new(tools).map(Tools).ok_or_else(|| EngineError::Template(error.take()))
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        // SAFETY: made by `hob_chat_tools_parse`, freed once.
        unsafe { hob_chat_tools_free(self.0.as_ptr()) }
    }
}

#[repr(C)]
pub(super) struct ChatHandle {
    _private: [u8; 0],
}

#[repr(C)]
pub(super) struct ToolsHandle {
    _private: [u8; 0],
}

/// Bytes with a length: lent to the other side, or given by it.
#[repr(C)]
pub(super) struct Text {
    data: *mut c_char,
    size: usize,
}

impl Text {
    pub(super) const EMPTY: Text = Text { data: std::ptr::null_mut(), size: 0 };

    /// The other side only reads what it is lent.
    pub(super) fn lent(text: &str) -> Text {
        Text::lent_bytes(text.as_bytes())
    }

    pub(super) fn lent_bytes(text: &[u8]) -> Text {
        Text { data: text.as_ptr().cast_mut().cast(), size: text.len() }
    }

    /// The text that the other side gave. A template that cuts a character apart leaves U+FFFD.
    pub(super) fn take(self) -> String {
        String::from_utf8_lossy(&self.take_bytes()).into_owned()
    }

    pub(super) fn take_bytes(self) -> Vec<u8> {
        if self.data.is_null() {
            return Vec::new();
        }
        // SAFETY: `hob_text`s that come out hold `size` bytes from malloc, and are ours to free.
        unsafe {
            let bytes = std::slice::from_raw_parts(self.data.cast(), self.size).to_vec();
            hob_text_free(self);
            bytes
        }
    }
}

// chat.cpp; as there.
unsafe extern "C" {
    fn hob_chat_open(source: Text, bos: Text, eos: Text, strip_bos: bool, error: *mut Text) -> *mut ChatHandle;
    fn hob_chat_close(chat: *mut ChatHandle);
    fn hob_chat_tools_parse(tools: Text, error: *mut Text) -> *mut ToolsHandle;
    fn hob_chat_tools_free(tools: *mut ToolsHandle);
    fn hob_chat_direct(
        chat: *const ChatHandle,
        tools: *const ToolsHandle,
        messages: Text,
        args: Text,
        open_answer: bool,
        now: i64,
        out: *mut Text,
    ) -> bool;
    #[cfg(test)]
    fn hob_chat_reference(
        chat: *const ChatHandle,
        tools: *const ToolsHandle,
        messages: Text,
        open_answer: bool,
        out: *mut Text,
    ) -> bool;
    fn hob_text_free(text: Text);
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod transformers;
