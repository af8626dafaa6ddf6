//! Where things land in the text a chat template writes, found by rendering marks once per template.
//!
//! A *landing* is what the planner must know of a template to order sections: whether tools come before or after the
//! system text, and whether a control token ends what stands before the first user's text. It orders nothing.

use std::borrow::Cow;

use super::calls;
use super::sentinel::Controls;
use crate::engine::ChatTemplate;
use crate::request::{Message, Role, ToolCall, Wanted};

/// Texts that no template and no trimming changes.
const SYSTEM: &str = "hobmarksystem";
const TOOL: &str = "hobmarktool";
const USER: &str = "hobmarkuser";
const ANSWER: &str = "hobmarkanswer";
const QUESTION: &str = "hobmarkquestion";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Landing {
    /// Tools stand before the system text, so that they stay when what ends the system text changes.
    pub(super) tools_first: bool,
    /// Of several calls in one message the template shows the first at most.
    pub(super) takes_one_call: bool,
    /// The template prints the date: tomorrow's prompts begin differently.
    pub(super) prints_date: bool,
    /// It prints the time of day: prompts of the same day differ, too.
    pub(super) prints_time: bool,
    without_tools: Closed,
    with_tools: Closed,
}

/// A part of the prompt, named for people, and whether a conversation can be cut off at its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landed {
    pub what: &'static str,
    pub closes: bool,
}

/// Whether a control token ends a part of the prompt, so that a cut can stand there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Closed {
    /// Between the system text, with its tools, and the first user's text. Not so where they share a turn (Gemma).
    system: bool,
    /// Between a first exchange and the next user's text.
    exchange: bool,
}

impl Landing {
    pub(super) fn find(template: &dyn ChatTemplate, controls: &Controls) -> Landing {
        let [prints_date, prints_time] = [24 * 3600, 61].map(|later_s| differs(template, later_s));
        let landing = |tools_first, takes_one_call, without_tools, with_tools| Landing {
            tools_first,
            takes_one_call,
            prints_date,
            prints_time,
            without_tools,
            with_tools,
        };
        let plain = render(template, &[]);
        let without_tools = plain.as_deref().map_or(Closed::NOWHERE, |text| Closed::find(text, SYSTEM, controls));
        if !template.takes_tools() {
            // The fallback writes tools at the end of the system text.
            return landing(false, false, without_tools, without_tools);
        }
        let takes_one_call = takes_one_call(template, &tool());
        let Some(text) = render(template, &[tool()]) else {
            return landing(false, takes_one_call, without_tools, Closed::NOWHERE);
        };
        let tools_first = match (text.find(TOOL), text.find(SYSTEM)) {
            (Some(tool), Some(system)) => tool < system,
            // Not both found: documents then keep out of the system text, which is right for most templates.
            _ => false,
        };
        let last = if tools_first { SYSTEM } else { TOOL };
        landing(tools_first, takes_one_call, without_tools, Closed::find(&text, last, controls))
    }

    /// Whether documents stand as a first exchange: inside the system text each edit of one would cost the tools after
    /// it, or there would be no control token to end them.
    pub(super) fn documents_in_exchange(&self, has_tools: bool) -> bool {
        (has_tools && !self.tools_first) || !self.system_closes(has_tools)
    }

    /// Whether a cut can stand at the end of the system text and the tools.
    pub(super) fn system_closes(&self, has_tools: bool) -> bool {
        self.closed(has_tools).system
    }

    /// Whether a cut can stand at the end of a first exchange.
    pub(super) fn exchange_closes(&self, has_tools: bool) -> bool {
        self.closed(has_tools).exchange
    }

    /// Where the parts of a profile's prompt with tools stand, from front to back.
    pub(super) fn places(&self, by_fallback: bool) -> Vec<Landed> {
        let landed = |what, closes| Landed { what, closes };
        let system_closes = self.system_closes(true);
        let tools = if by_fallback { "tools (written by hob)" } else { "tools" };
        let mut places = match self.documents_in_exchange(true) {
            true => vec![
                landed("system text", system_closes && self.tools_first),
                landed(tools, system_closes && !self.tools_first),
                landed("documents as a first exchange", self.exchange_closes(true)),
            ],
            false => vec![landed("system text", false), landed(tools, false), landed("documents", system_closes)],
        };
        if self.tools_first {
            places.swap(0, 1);
        }
        places.extend([landed("history", true), landed("live values, question", false)]);
        places
    }

    fn closed(&self, has_tools: bool) -> Closed {
        if has_tools { self.with_tools } else { self.without_tools }
    }
}

impl Closed {
    const NOWHERE: Closed = Closed { system: false, exchange: false };

    /// `last`: the mark that comes last before the first user's text.
    fn find(text: &str, last: &str, controls: &Controls) -> Closed {
        let closes = |before: &str, after: &str| match (text.rfind(before), text.find(after)) {
            (Some(start), Some(end)) if start < end => controls.find(&text[start..end]).next().is_some(),
            _ => false,
        };
        Closed { system: closes(last, USER), exchange: closes(ANSWER, QUESTION) }
    }
}

fn tool() -> String {
    format!(
        r#"{{"type":"function","function":{{"name":"{TOOL}","description":"{TOOL}","parameters":{{"type":"object","properties":{{}}}}}}}}"#
    )
}

/// Whether any prompt is another one so much later. Some templates print the date only where there is no system text.
fn differs(template: &dyn ChatTemplate, later_s: i64) -> bool {
    // Noon somewhere: so soon after it the day is the same in every time zone but one.
    const NOON: i64 = 20_000 * 24 * 3600 + 12 * 3600;
    [vec![], vec![tool()]].iter().filter_map(|tools| template.prepare(tools).ok()).any(|prepared| {
        let render = |messages: &[Message], at| prepared.render_at(messages, true, at, &Wanted::default()).ok();
        [&marks()[..], &marks()[1..]].iter().any(|messages| render(messages, NOON) != render(messages, NOON + later_s))
    })
}

/// A conversation of marks, system text first.
fn marks() -> [Message; 4] {
    [
        Message::text(Role::System, SYSTEM),
        Message::text(Role::User, USER),
        Message::text(Role::Assistant, ANSWER),
        Message::text(Role::User, QUESTION),
    ]
}

/// `None`: the template refuses it.
fn render(template: &dyn ChatTemplate, tools: &[String]) -> Option<String> {
    template.prepare(tools).and_then(|prepared| prepared.render(&marks(), true)).ok()
}

/// Whether two calls are shown only if each has a message of its own.
fn takes_one_call(template: &dyn ChatTemplate, tool: &str) -> bool {
    // Mistral wants ids of nine characters.
    let made = [("hobcall01", "hobmarkfirst"), ("hobcall02", "hobmarksecond")];
    let calls = made.map(|(id, mark)| ToolCall {
        id: Some(id.into()),
        name: TOOL.into(),
        arguments: format!(r#"{{"a":"{mark}"}}"#),
    });
    let results = made.map(|(id, _)| Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, ANSWER) });
    let calling = Message { tool_calls: calls.into(), ..Message::text(Role::Assistant, "") };
    let messages: Vec<Message> = [Message::text(Role::User, USER), calling].into_iter().chain(results).collect();
    let shows_both = |messages: &[Message]| {
        let text = template.prepare(&[tool.to_owned()]).and_then(|prepared| prepared.render(messages, true));
        text.is_ok_and(|text| made.iter().all(|(_, mark)| text.contains(mark)))
    };
    !shows_both(&messages) && shows_both(&calls::one_by_one(Cow::Borrowed(&messages)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bytes, Style, Template};
    use super::*;

    fn check(style: Style, expected: Landing) {
        let controls = Controls::of(&Bytes::new()).unwrap();
        assert_eq!(Landing::find(&Template::new(style), &controls), expected, "{style:?}");
    }

    #[test]
    fn tools_and_ends_are_found_where_the_template_has_them() {
        let closed = Closed { system: true, exchange: true };
        let shared = Closed { system: false, exchange: true };
        let landing = |tools_first, ends| Landing {
            tools_first,
            takes_one_call: false,
            prints_date: false,
            prints_time: false,
            without_tools: ends,
            with_tools: ends,
        };
        check(Style::Plain, landing(false, closed));
        check(Style::ToolsAfter, landing(false, closed));
        check(Style::ToolsBefore, landing(true, closed));
        check(Style::Shared, landing(false, shared));
    }

    #[test]
    fn a_template_that_shows_one_call_at_a_time_is_found_out() {
        let controls = Controls::of(&Bytes::new()).unwrap();
        for is_refused in [true, false] {
            let template = Template::one_call(Style::ToolsAfter, is_refused);
            assert!(Landing::find(&template, &controls).takes_one_call);
        }
    }
}
