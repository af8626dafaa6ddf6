//! The order of a prompt's sections: what the house fixed first, what is new last.
//!
//! An *arrangement* is the list of messages a template is to render, the sections in it, and the places where one may
//! end for good. A prompt whose client named no profile stays as the client wrote it.
//!
//! With a profile:
//! ```text
//! documents in the system text              documents as a first exchange
//! (no tools, or tools come first)           (tools come after the system text)
//!
//! tools                                     policy
//! policy                                    tools                       ← end
//! documents                     ← end       documents / "Noted."        ← end
//! client's system text / "Noted." ← end     client's system text / "Noted." ← end
//! history, question                         history, question
//! ```
//! The client's own system text is an exchange, too, because its end inside the system text would replace the control
//! tokens that end the profile's head, and the pinned head would not be a prefix any more. A client that brings tools of
//! its own shares no head past the policy; its text goes into the system text.

use std::borrow::Cow;

use super::landing::Landing;
use super::live::LiveBlock;
use super::sentinel::{Controls, Reserved};
use super::toolset::Toolset;
use super::{Profile, PromptError, Section, Volatility, fallback};
use crate::request::{AdapterSet, Message, Role};

/// What the assistant says to documents and instructions that came in a user's turn. It never changes: it is in each pin.
const NOTED: &str = "Noted.";
/// What a user is given to say where a history begins without one. It says nothing that might not be so.
const OPENING: &str = "…";
const DOCUMENTS_INTRO: &str = "These are the household's documents. Rely on them where they answer a question.";

/// A profile as the planner uses it: texts with sentinels, documents written out.
pub(super) struct House {
    pub(super) name: String,
    pub(super) max_tokens: Option<usize>,
    pub(super) thinking: Option<bool>,
    pub(super) adapters: Option<AdapterSet>,
    /// As configured: sentinels are put where they are prepared.
    pub(super) tools: Vec<String>,
    policy: String,
    /// All documents in their wrappers; empty without any.
    documents: String,
    /// Title and bytes of each.
    documents_sections: Vec<(String, usize)>,
}

impl House {
    pub(super) fn new(profile: Profile, controls: &Controls) -> Result<House, PromptError> {
        let Profile { name, system, tools, documents, max_tokens, thinking, adapters } = profile;
        let guarded = |mut text: String, what: &str| match controls.guard(&mut text) {
            Ok(_) => Ok(text),
            Err(Reserved(code)) => {
                Err(PromptError::ReservedElsewhere { place: format!("profile `{name}`, {what}"), code })
            }
        };
        // The line feed at a file's end is no part of what it says.
        let policy = guarded(system.trim().to_string(), "system")?;
        let mut parts = Vec::with_capacity(documents.len() + 1);
        let mut documents_sections = Vec::with_capacity(documents.len());
        for document in documents {
            let title = guarded(document.title, "document title")?;
            let text = guarded(document.text, &format!("document `{title}`"))?;
            let part = format!("<document title=\"{title}\">\n{}\n</document>", text.trim());
            documents_sections.push((title, part.len()));
            parts.push(part);
        }
        if !parts.is_empty() {
            parts.insert(0, DOCUMENTS_INTRO.to_string());
        }
        Ok(House {
            name,
            max_tokens,
            thinking,
            adapters,
            tools,
            policy,
            documents: parts.join("\n\n"),
            documents_sections,
        })
    }
}

pub(super) struct Arrangement<'a> {
    pub(super) messages: Cow<'a, [Message]>,
    pub(super) sections: Vec<Section>,
    /// From front to back.
    pub(super) ends: Vec<End>,
}

/// A place where something else may follow, and what stands before is wanted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    /// Messages before it.
    pub(super) n_messages: usize,
    /// The section that ends here.
    pub(super) section_idx: usize,
}

/// What both kinds of arrangement need to know.
pub(super) struct Rules<'a> {
    pub(super) landing: Landing,
    pub(super) by_fallback: bool,
    pub(super) tools: &'a Toolset,
}

/// A prompt of a client that named no profile.
pub(super) fn arrange_own<'a>(messages: &'a [Message], rules: &Rules) -> Arrangement<'a> {
    let (leading, history) = split_system(messages);
    let mut sections = Vec::new();
    if !leading.is_empty() {
        push(&mut sections, "client system", Volatility::Session, leading.iter().map(n_bytes).sum());
    }
    rules.push_tools(&mut sections);
    let mut messages = Cow::Borrowed(messages);
    let mut n_leading = leading.len();
    if rules.by_fallback {
        let mut written = leading.to_vec();
        if let Some(text) = &rules.tools.written {
            match written.last_mut() {
                Some(system) => system.content = join([system.content.as_str(), text]),
                None => written.push(Message::text(Role::System, text)),
            }
        }
        n_leading = written.len();
        written.extend(fallback::calls_as_text(history));
        messages = Cow::Owned(written);
    }
    let mut ends = Vec::new();
    if let Some(section_idx) = sections.len().checked_sub(1)
        && rules.landing.system_closes(rules.has_tools())
    {
        ends.push(End { n_messages: n_leading, section_idx });
    }
    push_turns(&mut sections, history);
    Arrangement { messages, sections, ends }
}

/// A prompt to a profile. `own_tools`: the client brought tools that are not the profile's.
pub(super) fn arrange_for_house(
    house: &House,
    messages: &[Message],
    own_tools: bool,
    rules: &Rules,
) -> Arrangement<'static> {
    let (leading, history) = split_system(messages);
    let client_text = join(leading.iter().map(|message| message.content.as_str()));
    let has_tools = rules.has_tools();
    let has_head = has_tools || !house.policy.is_empty() || !house.documents.is_empty();
    let client_in_system = own_tools || !has_head;
    let documents_in_exchange = !house.documents.is_empty() && rules.landing.documents_in_exchange(has_tools);

    let mut arranged = Arrangement { messages: Cow::Owned(Vec::new()), sections: Vec::new(), ends: Vec::new() };
    let sections = &mut arranged.sections;
    let mut system = vec![house.policy.as_str()];
    if !house.policy.is_empty() {
        push(sections, "policy", Volatility::Fixed, house.policy.len());
    }
    if !documents_in_exchange {
        system.push(&house.documents);
        house.push_documents(sections);
    }
    if client_in_system && !client_text.is_empty() {
        system.push(&client_text);
        push(sections, "client system", Volatility::Session, client_text.len());
    }
    system.extend(rules.tools.written.as_deref());
    rules.push_tools(sections);
    let system = join(system);
    let messages = arranged.messages.to_mut();
    if !system.is_empty() {
        messages.push(Message::text(Role::System, system));
    }
    if rules.landing.system_closes(has_tools) {
        arranged.end_here();
    }
    if documents_in_exchange {
        house.push_documents(&mut arranged.sections);
        arranged.exchange(&house.documents, rules);
    }
    if !client_in_system && !client_text.is_empty() {
        push(&mut arranged.sections, "client system", Volatility::Session, client_text.len());
        arranged.exchange(&client_text, rules);
    }
    push_turns(&mut arranged.sections, history);
    let messages = arranged.messages.to_mut();
    if rules.by_fallback {
        messages.extend(fallback::calls_as_text(history));
    } else {
        messages.extend_from_slice(history);
    }
    arranged
}

impl Rules<'_> {
    fn has_tools(&self) -> bool {
        self.tools.n_bytes > 0
    }

    /// Tools where the template renders them: before or after what the system text holds.
    fn push_tools(&self, sections: &mut Vec<Section>) {
        if self.has_tools() {
            push(sections, "tools", Volatility::Fixed, self.tools.n_bytes);
            if self.landing.tools_first {
                sections.rotate_right(1);
            }
        }
    }
}

impl House {
    fn push_documents(&self, sections: &mut Vec<Section>) {
        for (title, n_bytes) in &self.documents_sections {
            push(sections, &format!("document {title}"), Volatility::Document, *n_bytes);
        }
    }
}

impl Arrangement<'_> {
    /// A user's turn that holds `text` and a fixed answer to it.
    fn exchange(&mut self, text: &str, rules: &Rules) {
        self.messages.to_mut().extend([Message::text(Role::User, text), Message::text(Role::Assistant, NOTED)]);
        if rules.landing.exchange_closes(rules.has_tools()) {
            self.end_here();
        }
    }

    /// The last section ends behind the last message, if there is any.
    fn end_here(&mut self) {
        if let Some(section_idx) = self.sections.len().checked_sub(1) {
            self.ends.push(End { n_messages: self.messages.len(), section_idx });
        }
    }
}

/// `messages` with a user's turn in front of a history that begins with somebody else's, as one does that its client trimmed:
/// some templates refuse it. `None`: it begins with a user's turn.
pub(super) fn opened_by_user(messages: &[Message]) -> Option<Vec<Message>> {
    let (leading, history) = split_system(messages);
    history.first().filter(|first| first.role != Role::User)?;
    Some([leading, &[Message::text(Role::User, OPENING)], history].concat())
}

/// The system messages that open `messages`, and the rest.
fn split_system(messages: &[Message]) -> (&[Message], &[Message]) {
    let n_leading =
        messages.iter().take_while(|message| matches!(message.role, Role::System | Role::Developer)).count();
    messages.split_at(n_leading)
}

/// History and question: the last user's message with what came after it.
fn push_turns(sections: &mut Vec<Section>, turns: &[Message]) {
    let question_idx = turns.iter().rposition(|message| message.role == Role::User).unwrap_or(turns.len());
    let (history, question) = turns.split_at(question_idx);
    for (name, messages) in [("history", history), ("question", question)] {
        if !messages.is_empty() {
            push(sections, name, Volatility::Turn, messages.iter().map(n_bytes).sum());
        }
    }
}

/// Live blocks, which stand inside turns of `messages`, become a section of their own.
pub(super) fn part_live(sections: &mut Vec<Section>, messages: &[Message], live: &[LiveBlock]) {
    let question_idx = messages.iter().rposition(|message| message.role == Role::User);
    for block in live {
        let name = if Some(block.message_idx) < question_idx { "history" } else { "question" };
        if let Some(section) = sections.iter_mut().find(|section| section.name == name) {
            section.n_bytes = section.n_bytes.saturating_sub(block.n_bytes);
        }
    }
    if !live.is_empty() {
        push(sections, "live", Volatility::Live, live.iter().map(|block| block.n_bytes).sum());
    }
}

fn push(sections: &mut Vec<Section>, name: &str, class: Volatility, n_bytes: usize) {
    sections.push(Section { name: name.to_string(), class, n_bytes, cut: None });
}

fn n_bytes(message: &Message) -> usize {
    let reasoning = message.reasoning.as_ref().map_or(0, String::len);
    let calls: usize = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
    message.content.len() + reasoning + calls
}

/// Parts of a text with an empty line between them.
fn join<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}
