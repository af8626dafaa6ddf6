//! What in stored requests would break the reuse of what stands behind it.
//!
//! A *finding* is a place in one request, judged by itself (a clock, a token made for one request) or beside the request before
//! it (tools in another order, a line that changed). It tells what is sent, not what a layout mode would make of it, and
//! computes nothing.

use std::ops::Range;

use serde_json::Value;

use super::clock;
use super::live::changes;
use crate::request::{Message, Request, Role};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    /// The request it is in, by its index.
    pub request_idx: usize,
    /// It differs from the request before.
    pub is_by_comparison: bool,
    pub place: FindingPlace,
    /// The text itself.
    pub text: String,
    /// What stood there in the request before, where it differs.
    pub before: Option<String>,
    /// Bytes of system text and tools behind it.
    pub n_bytes_behind: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingPlace {
    /// `line` counts from 1; `byte` from the beginning of the message's text.
    Message {
        message_idx: usize,
        line: usize,
        byte: usize,
    },
    /// A call in the history.
    Call {
        message_idx: usize,
    },
    Tool {
        tool_idx: usize,
    },
    Tools,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingKind {
    /// The time or the date in the system text.
    Clock,
    /// A token that was made for one request.
    Nonce,
    /// A UUID that no label explains.
    Uuid,
    /// A number that rose by one since the request before.
    Counter,
    /// A part of the system text that is another one in the request before.
    Changed,
    /// What the user asks, in the system text.
    UserText,
    /// White space alone changed.
    WhiteSpace,
    /// The same JSON with its keys in another order.
    KeyOrder,
    /// The same tools in another order.
    ToolOrder,
    /// A tool's definition is another one.
    ToolChanged,
    /// Tools came or went in front of others.
    ToolSet,
}

impl FindingKind {
    pub fn name(self) -> &'static str {
        match self {
            FindingKind::Clock => "clock",
            FindingKind::Nonce => "nonce",
            FindingKind::Uuid => "uuid",
            FindingKind::Counter => "counter",
            FindingKind::Changed => "changed",
            FindingKind::UserText => "user_text",
            FindingKind::WhiteSpace => "white_space",
            FindingKind::KeyOrder => "key_order",
            FindingKind::ToolOrder => "tool_order",
            FindingKind::ToolChanged => "tool_changed",
            FindingKind::ToolSet => "tool_set",
        }
    }
}

/// Shorter questions stand in a system text by chance.
const USER_TEXT_BYTES_MIN: usize = 16;

/// The findings of `requests`, each compared with the one before it, in order.
pub fn lint(requests: &[Request]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (request_idx, request) in requests.iter().enumerate() {
        let mut look = Look { request_idx, request, findings: &mut findings };
        look.alone();
        if let Some(before_idx) = request_idx.checked_sub(1) {
            look.beside(&requests[before_idx]);
        }
    }
    findings
}

struct Look<'a> {
    request_idx: usize,
    request: &'a Request,
    findings: &'a mut Vec<Finding>,
}

impl Look<'_> {
    fn alone(&mut self) {
        let leading = leading(self.request);
        for (message_idx, message) in leading.iter().enumerate() {
            for (line, range) in lines(&message.content) {
                let text = &message.content[range.clone()];
                let kind = if clock::looks_like_nonce(text) {
                    FindingKind::Nonce
                } else if clock::looks_like_clock(text) {
                    FindingKind::Clock
                } else if holds_uuid(text) {
                    FindingKind::Uuid
                } else {
                    continue;
                };
                self.add(kind, FindingPlace::Message { message_idx, line, byte: range.start }, text, None);
            }
        }
        let question = self.request.messages.iter().rfind(|message| message.role == Role::User);
        let question = question.map(|message| message.content.trim()).unwrap_or_default();
        if question.len() >= USER_TEXT_BYTES_MIN {
            for (message_idx, message) in leading.iter().enumerate() {
                if let Some(byte) = message.content.find(question) {
                    self.add(FindingKind::UserText, place(message_idx, &message.content, byte), question, None);
                }
            }
        }
    }

    fn beside(&mut self, before: &Request) {
        self.system_text(before);
        self.tools(before);
        for (message_idx, (was, is)) in before.messages.iter().zip(&self.request.messages).enumerate() {
            for (was, is) in was.tool_calls.iter().zip(&is.tool_calls).filter(|(was, is)| was.name == is.name) {
                if let Some(kind) = json_change(&was.arguments, &is.arguments) {
                    let place = FindingPlace::Call { message_idx };
                    self.add_changed(kind, place, &is.arguments, &was.arguments);
                }
            }
        }
    }

    fn system_text(&mut self, before: &Request) {
        let texts = |request| -> Vec<&str> { leading(request).iter().map(|message| &*message.content).collect() };
        let (was, is) = (texts(before), texts(self.request));
        if was == is {
            return;
        }
        let is_known = |line: &str| clock::looks_like_clock(line) || clock::looks_like_nonce(line) || holds_uuid(line);
        let Some(changes) = changes::changes(&was, &is, &is_known) else { return };
        // Without a changed block and with nothing that is known to change, it is the gaps between blocks.
        let has_known = is.iter().any(|text| text.lines().any(is_known));
        if changes.is_empty() && !has_known {
            let text_idx =
                was.iter().zip(&is).take_while(|(was, is)| was == is).count().min(is.len().saturating_sub(1));
            let (was, is) = (was.get(text_idx).unwrap_or(&""), is.get(text_idx).unwrap_or(&""));
            let byte = is.char_indices().zip(was.chars()).take_while(|((_, is), was)| is == was).count();
            let byte = is.char_indices().nth(byte).map_or(is.len(), |(at, _)| at);
            self.add_changed(FindingKind::WhiteSpace, place(text_idx, is, byte), "", "");
        }
        for change in changes {
            let kind = match counts(&change.before, &change.after) {
                true => FindingKind::Counter,
                false => FindingKind::Changed,
            };
            let place = place(change.text_idx, is[change.text_idx], change.byte);
            self.add_changed(kind, place, &change.after, &change.before);
        }
    }

    fn tools(&mut self, before: &Request) {
        let (was, is) = (&before.tools, &self.request.tools);
        if was == is {
            return;
        }
        let (was_names, is_names): (Vec<String>, Vec<String>) =
            (was.iter().map(|tool| name(tool)).collect(), is.iter().map(|tool| name(tool)).collect());
        for (tool_idx, (definition, name)) in is.iter().zip(&is_names).enumerate() {
            let Some(was_idx) = was_names.iter().position(|other| other == name) else { continue };
            if was[was_idx] != *definition {
                let kind = json_change(&was[was_idx], definition).unwrap_or(FindingKind::ToolChanged);
                self.add_changed(kind, FindingPlace::Tool { tool_idx }, name, name);
            }
        }
        let common = |names: &[String], others: &[String]| -> Vec<String> {
            names.iter().filter(|name| others.contains(name)).cloned().collect()
        };
        let (was_common, is_common) = (common(&was_names, &is_names), common(&is_names, &was_names));
        let n_front = was_names.len().min(is_names.len());
        if was_common != is_common {
            self.add_changed(FindingKind::ToolOrder, FindingPlace::Tools, &is_names.join(", "), &was_names.join(", "));
        } else if was_names[..n_front] != is_names[..n_front] {
            self.add_changed(FindingKind::ToolSet, FindingPlace::Tools, &is_names.join(", "), &was_names.join(", "));
        }
    }

    fn add_changed(&mut self, kind: FindingKind, place: FindingPlace, text: &str, before: &str) {
        self.add(kind, place, text, Some(before));
    }

    fn add(&mut self, kind: FindingKind, place: FindingPlace, text: &str, before: Option<&str>) {
        let n_tools: usize = self.request.tools.iter().map(String::len).sum();
        let n_bytes_behind = match place {
            FindingPlace::Message { message_idx, byte, .. } => {
                let leading = leading(self.request);
                let n_system: usize = leading[message_idx..].iter().map(|message| message.content.len()).sum();
                (n_system + n_tools).saturating_sub(byte + text.len())
            }
            FindingPlace::Tool { tool_idx } => self.request.tools[tool_idx + 1..].iter().map(String::len).sum(),
            FindingPlace::Tools => n_tools,
            FindingPlace::Call { .. } => 0,
        };
        self.findings.push(Finding {
            kind,
            request_idx: self.request_idx,
            is_by_comparison: before.is_some(),
            place,
            text: text.to_owned(),
            before: before.map(str::to_owned).filter(|before| before != text),
            n_bytes_behind,
        });
    }
}

fn leading(request: &Request) -> &[Message] {
    let is_system = |message: &&Message| matches!(message.role, Role::System | Role::Developer);
    &request.messages[..request.messages.iter().take_while(is_system).count()]
}

/// Lines by their number, without line ends.
fn lines(text: &str) -> impl Iterator<Item = (usize, Range<usize>)> {
    let mut start = 0;
    text.split_inclusive('\n').enumerate().map(move |(line_idx, line)| {
        let range = start..start + line.trim_end().len();
        start += line.len();
        (line_idx + 1, range)
    })
}

fn place(message_idx: usize, text: &str, byte: usize) -> FindingPlace {
    FindingPlace::Message { message_idx, line: text[..byte].matches('\n').count() + 1, byte }
}

fn name(tool: &str) -> String {
    let tool: Value = serde_json::from_str(tool).unwrap_or_default();
    tool["function"]["name"].as_str().unwrap_or_default().to_owned()
}

/// What differs between two texts of the same JSON; `None`: nothing, or they are not the same.
fn json_change(before: &str, after: &str) -> Option<FindingKind> {
    let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
    let (was, is) = (parse(before)?, parse(after)?);
    // Objects are equal whatever the order of their keys; their texts are not.
    let is_same = before != after && was == is;
    let [was, is] = [was, is].map(|json| json.to_string());
    let has_other_order = was != is;
    is_same.then_some(if has_other_order { FindingKind::KeyOrder } else { FindingKind::WhiteSpace })
}

/// Whether one number rose by one and nothing else differs: temperatures rise, too, but rarely like that.
fn counts(before: &str, after: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let mut words: Vec<String> = Vec::new();
        for character in text.chars() {
            let is_digit = character.is_ascii_digit();
            match words.last_mut() {
                Some(word) if word.ends_with(|c: char| c.is_ascii_digit()) == is_digit => word.push(character),
                _ => words.push(character.to_string()),
            }
        }
        words
    };
    let (before, after) = (words(before), words(after));
    let mut differing = before.iter().zip(&after).filter(|(was, is)| was != is);
    let number = |word: &String| word.parse::<u64>().ok();
    before.len() == after.len()
        && differing
            .next()
            .is_some_and(|(was, is)| number(was).and_then(|n| n.checked_add(1)) == Some(number(is).unwrap_or(0)))
        && differing.next().is_none()
}

fn holds_uuid(line: &str) -> bool {
    let is_part = |c: char| c.is_ascii_hexdigit() || c == '-';
    line.split(|c| !is_part(c)).any(|word| {
        let lengths: Vec<usize> = word.split('-').map(str::len).collect();
        lengths == [8, 4, 4, 4, 12]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{Client, Dialect, Priority, Sampling, ToolCall, Wanted};

    const RULES: &str = "You are the voice of this house and answer briefly.\nUse the tools that you are given.";
    const LIGHT: &str = r#"{"type": "function", "function": {"name": "light", "description": "Switches."}}"#;
    const BIN: &str = r#"{"type": "function", "function": {"name": "bin"}}"#;

    fn request(system: &str, tools: &[&str]) -> Request {
        Request {
            model: "house".into(),
            messages: vec![Message::text(Role::System, system), Message::text(Role::User, "Is the oven on?")],
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

    fn kinds(requests: &[Request]) -> Vec<&'static str> {
        lint(requests).iter().map(|found| found.kind.name()).collect()
    }

    #[test]
    fn a_clean_request_has_no_findings() {
        let clean = request(RULES, &[LIGHT, BIN]);
        assert_eq!(lint(&[clean.clone(), clean]), []);
    }

    #[test]
    fn a_line_is_judged_by_itself() {
        let check = |line: &str, expected: &[&str]| {
            assert_eq!(kinds(&[request(&format!("{RULES}\n{line}\nBe kind."), &[LIGHT])]), expected, "{line}");
        };
        check("Current time: 08:06:10", &["clock"]);
        check("It is Monday, 30 November 2026, 20:06.", &["clock"]);
        check("request id: 0f8fad5b-d9cb-469f-a165-70867728950e", &["nonce"]);
        check("x-anthropic-billing-header: cc_version=2.1.36; cch=a1b2c;", &["nonce"]);
        check("The boiler's key is 0f8fad5b-d9cb-469f-a165-70867728950e, keep it.", &["uuid"]);
        check("Question: Is the oven on?", &[]);
        check("Boiler serviced 12.05.2026", &[]);
    }

    #[test]
    fn a_finding_has_its_place_and_what_stands_behind_it() {
        let found = &lint(&[request(&format!("Zoë is home.\nCurrent time: 08:06\n{RULES}"), &[LIGHT])])[0];
        assert_eq!(found.place, FindingPlace::Message { message_idx: 0, line: 2, byte: 14 });
        assert_eq!((found.text.as_str(), found.is_by_comparison), ("Current time: 08:06", false));
        assert_eq!(found.n_bytes_behind, 1 + RULES.len() + LIGHT.len());
    }

    #[test]
    fn a_question_inside_the_system_text_is_found() {
        let mut asked = request(&format!("{RULES}\nAnswer this: Is the front door locked?"), &[]);
        asked.messages[1].content = "Is the front door locked?\n".into();
        assert_eq!(kinds(&[asked]), ["user_text"]);
    }

    #[test]
    fn system_texts_are_compared_where_they_are_one_text() {
        let with = |line: &str| request(&format!("{RULES}\n{line}\nBe kind."), &[]);
        let check = |before: &str, after: &str, expected: &[&str]| {
            assert_eq!(kinds(&[with(before), with(after)]), expected, "{before} {after}");
        };
        check("Lamp: on", "Lamp: on", &[]);
        check("Lamp: on", "Lamp: off", &["changed"]);
        check("Lamp: on", "", &["changed"]);
        check("This is request 9 of yours.", "This is request 10 of yours.", &["counter"]);
        check("Outside: 19.5", "Outside: 21.5", &["changed"]);
        // Named once for each request, and not as changed again.
        check("Current time: 08:06", "Current time: 08:07", &["clock", "clock"]);
        assert_eq!(
            kinds(&[request(RULES, &[]), request("You write poems about the sea and nothing else.", &[])]),
            [] as [&str; 0]
        );
        assert_eq!(kinds(&[request(RULES, &[]), request(&RULES.replace('\n', "\n\n"), &[])]), ["white_space"]);
        let found = lint(&[with("Lamp: on"), with("Lamp: off")]).remove(0);
        assert_eq!((found.before.as_deref(), found.text.as_str()), (Some("Lamp: on"), "Lamp: off"));
        assert_eq!(found.place, FindingPlace::Message { message_idx: 0, line: 3, byte: RULES.len() + 1 });
    }

    #[test]
    fn tools_are_compared_by_name() {
        let light_keys = r#"{"function": {"name": "light", "description": "Switches."}, "type": "function"}"#;
        let light_space = LIGHT.replace(": ", ":");
        let light_other = LIGHT.replace("Switches.", "Dims.");
        let check = |before: &[&str], after: &[&str], expected: &[&str]| {
            assert_eq!(kinds(&[request(RULES, before), request(RULES, after)]), expected, "{before:?} {after:?}");
        };
        check(&[LIGHT, BIN], &[BIN, LIGHT], &["tool_order"]);
        check(&[LIGHT, BIN], &[light_keys, BIN], &["key_order"]);
        check(&[LIGHT, BIN], &[&light_space, BIN], &["white_space"]);
        check(&[LIGHT, BIN], &[&light_other, BIN], &["tool_changed"]);
        check(&[BIN], &[LIGHT, BIN], &["tool_set"]);
        check(&[BIN], &[BIN, LIGHT], &[]);
        check(&[LIGHT, BIN], &[LIGHT], &[]);
    }

    #[test]
    fn arguments_written_anew_in_the_history_are_found() {
        let with = |arguments: &str| {
            let mut asked = request(RULES, &[]);
            let call = ToolCall { id: None, name: "light".into(), arguments: arguments.into() };
            asked.messages.push(Message { tool_calls: vec![call], ..Message::text(Role::Assistant, "") });
            asked
        };
        let before = with(r#"{"room": "hall", "on": true}"#);
        assert_eq!(kinds(&[before.clone(), with(r#"{"on": true, "room": "hall"}"#)]), ["key_order"]);
        assert_eq!(kinds(&[before.clone(), with(r#"{"room":"hall","on":true}"#)]), ["white_space"]);
        assert_eq!(kinds(&[before.clone(), with(r#"{"room": "attic", "on": true}"#)]), [] as [&str; 0]);
    }
}
