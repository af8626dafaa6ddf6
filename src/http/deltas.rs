//! What is new in an answer that grows, in words that every dialect can write.
//!
//! A *delta* is one piece of one part: of what was thought, said or called. Parts come read from all the text so far; what was
//! told of them once is neither told again nor taken back. Nothing here knows a wire format.

use crate::prompt::AnswerParts;
use crate::request::ToolCall;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Delta {
    Reasoning(String),
    /// Never behind a call: there are clients that take it for another answer.
    Content(String),
    /// `index`: of the call in its answer. `arguments`: how their JSON text begins, never empty.
    CallBegun {
        index: usize,
        id: String,
        name: String,
        arguments: String,
    },
    CallArguments {
        index: usize,
        piece: String,
    },
}

/// What was told of an answer. Each call in it has an id: the model's own, else one that is made here.
#[derive(Debug, Default)]
pub(super) struct Deltas {
    told: AnswerParts,
}

impl Deltas {
    /// What `parts` hold beyond what was told. `is_complete`: nothing more comes, and nothing was cut off.
    ///
    /// A call is told with the first piece of its arguments; one that is complete without any has the arguments `{}`.
    pub(super) fn grow(&mut self, parts: &AnswerParts, is_complete: bool) -> Vec<Delta> {
        let mut deltas = Vec::new();
        deltas.extend(grown(&mut self.told.reasoning, &parts.reasoning).map(Delta::Reasoning));
        if self.told.calls.is_empty() {
            deltas.extend(grown(&mut self.told.content, &parts.content).map(Delta::Content));
        }
        for (index, call) in parts.calls.iter().enumerate() {
            let is_complete = is_complete || index + 1 < parts.calls.len();
            let arguments = match call.arguments.trim_start() {
                "" if is_complete => "{}",
                arguments => arguments,
            };
            match self.told.calls.get_mut(index) {
                Some(told) => {
                    let piece = grown(&mut told.arguments, arguments);
                    deltas.extend(piece.map(|piece| Delta::CallArguments { index, piece }));
                }
                None if arguments.is_empty() => break,
                None => {
                    let id = call.id.clone().filter(|id| !id.is_empty()).unwrap_or_else(new_id);
                    let (name, arguments) = (call.name.clone(), arguments.to_owned());
                    let told = ToolCall { id: Some(id.clone()), name: name.clone(), arguments: arguments.clone() };
                    self.told.calls.push(told);
                    deltas.push(Delta::CallBegun { index, id, name, arguments });
                }
            }
        }
        deltas
    }

    /// What of `text`, an answer that could not be parted to its end, was not told: it is content as it stands. Nothing of it
    /// can be told behind a call.
    pub(super) fn rest(&mut self, text: &str) -> Option<Delta> {
        let content = &mut self.told.content;
        let (_, rest) = text.split_once(content.as_str()).unwrap_or(("", text));
        if rest.is_empty() || !self.told.calls.is_empty() {
            return None;
        }
        content.push_str(rest);
        Some(Delta::Content(rest.to_owned()))
    }

    pub(super) fn told(&self) -> &AnswerParts {
        &self.told
    }
}

/// What `now` holds beyond `told`, which becomes equal to it; `None`: nothing, or it does not begin with it.
fn grown(told: &mut String, now: &str) -> Option<String> {
    let piece = now.strip_prefix(told.as_str()).filter(|piece| !piece.is_empty())?;
    told.push_str(piece);
    Some(piece.to_owned())
}

/// 24 letters and digits, as OpenAI's ids have.
fn new_id() -> String {
    let letters = (0..24).map(|_| fastrand::alphanumeric());
    format!("call_{}", letters.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: Option<&str>, name: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.map(str::to_owned), name: name.into(), arguments: arguments.into() }
    }

    fn parts(reasoning: &str, content: &str, calls: &[ToolCall]) -> AnswerParts {
        AnswerParts { reasoning: reasoning.into(), content: content.into(), calls: calls.to_vec() }
    }

    /// The deltas as one line each; ids that were made here are `new`.
    fn shown(deltas: Vec<Delta>) -> String {
        let line = |delta| match delta {
            Delta::Reasoning(piece) => format!("thinks {piece:?}"),
            Delta::Content(piece) => format!("says {piece:?}"),
            Delta::CallBegun { index, id, name, arguments } => {
                let id = if id.len() == 29 && id.starts_with("call_") { "new" } else { &id };
                format!("calls {index} {id} {name} {arguments}")
            }
            Delta::CallArguments { index, piece } => format!("adds {index} {piece}"),
        };
        deltas.into_iter().map(line).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn each_part_is_told_once_as_it_grows() {
        let mut deltas = Deltas::default();
        let mut grow = |parts: &AnswerParts, is_complete| shown(deltas.grow(parts, is_complete));
        assert_eq!(grow(&parts("h", "", &[]), false), r#"thinks "h""#);
        assert_eq!(grow(&parts("h", "", &[]), false), "");
        assert_eq!(grow(&parts("hm", "On ", &[]), false), r#"thinks "m"; says "On ""#);
        // A name alone is not told yet.
        assert_eq!(grow(&parts("hm", "On it", &[call(None, "light", "")]), false), r#"says "it""#);
        assert_eq!(grow(&parts("hm", "On it", &[call(None, "light", "{\"a\"")]), false), "calls 0 new light {\"a\"");
        let two = [call(None, "light", "{\"a\":1}"), call(Some("x1"), "door", "")];
        assert_eq!(grow(&parts("hm", "On it", &two), false), "adds 0 :1}");
        assert_eq!(grow(&parts("hm", "On it", &two), true), "calls 1 x1 door {}");
        assert_eq!(grow(&parts("hm", "On it", &two), true), "");
        let told = deltas.told();
        assert_eq!(told.content, "On it");
        assert!(told.calls.iter().all(|call| call.id.is_some()), "{told:?}");
    }

    #[test]
    fn a_call_that_another_follows_is_complete() {
        let calls = [call(None, "time", " "), call(None, "light", "{")];
        let told = Deltas::default().grow(&parts("", "", &calls), false);
        assert_eq!(shown(told), "calls 0 new time {}; calls 1 new light {");
    }

    #[test]
    fn a_call_that_was_cut_off_before_its_arguments_is_not_made_up() {
        assert_eq!(shown(Deltas::default().grow(&parts("", "", &[call(None, "light", "")]), false)), "");
    }

    #[test]
    fn no_text_stands_behind_a_call() {
        let mut deltas = Deltas::default();
        let calls = [call(None, "light", "{}")];
        // Told at once, it stands in front.
        assert_eq!(shown(deltas.grow(&parts("", "On it", &calls), false)), r#"says "On it"; calls 0 new light {}"#);
        assert_eq!(shown(deltas.grow(&parts("", "On it now", &calls), true)), "");
        assert_eq!(deltas.rest("On it now"), None);
    }

    #[test]
    fn what_was_told_is_not_taken_back() {
        let mut deltas = Deltas::default();
        deltas.grow(&parts("", "abc", &[]), false);
        assert_eq!(shown(deltas.grow(&parts("", "ab", &[]), false)), "");
        assert_eq!(shown(deltas.grow(&parts("", "abcd", &[]), true)), r#"says "d""#);
    }

    #[test]
    fn the_rest_of_an_answer_that_cannot_be_parted_is_content() {
        let rest = |told: &AnswerParts, text| {
            let mut deltas = Deltas::default();
            deltas.grow(told, false);
            deltas.rest(text).map(|delta| shown(vec![delta]))
        };
        assert_eq!(rest(&parts("", "", &[]), "<call>{").as_deref(), Some(r#"says "<call>{""#));
        assert_eq!(rest(&parts("", "On it", &[]), "On it<call>{").as_deref(), Some(r#"says "<call>{""#));
        assert_eq!(rest(&parts("hm", "On it", &[]), "<t>hm</t>On it<call>").as_deref(), Some(r#"says "<call>""#));
        assert_eq!(rest(&parts("", "On it", &[]), "On it"), None);
    }
}
