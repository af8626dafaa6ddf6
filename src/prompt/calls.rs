//! Calls that a model made at once, for templates that show one at a time.
//!
//! Such a template refuses a message with two calls, or drops the second without a word. *One by one*, each call is a
//! message of its own with its result behind it; no text, call or result is lost, and what stood first stays first.

use std::borrow::Cow;

use crate::request::{Message, Role};

/// `messages` with one call each.
pub(super) fn one_by_one(messages: Cow<'_, [Message]>) -> Cow<'_, [Message]> {
    if messages.iter().all(|message| message.tool_calls.len() <= 1) {
        return messages;
    }
    let mut parted = Vec::with_capacity(messages.len() + 8);
    let mut rest = &*messages;
    while let Some((message, behind)) = rest.split_first() {
        rest = behind;
        if message.tool_calls.len() <= 1 {
            parted.push(message.clone());
            continue;
        }
        let n_results = behind.iter().take_while(|message| message.role == Role::Tool).count();
        let (results, behind) = behind.split_at(n_results);
        rest = behind;
        part(message, results, &mut parted);
    }
    Cow::Owned(parted)
}

/// Results find their call by its id; those that name none of the calls stand for what is left, in their order.
fn part(message: &Message, results: &[Message], parted: &mut Vec<Message>) {
    let mut results: Vec<Option<&Message>> = results.iter().map(Some).collect();
    let ids: Vec<Option<&str>> = message.tool_calls.iter().map(|call| call.id.as_deref()).collect();
    let is_named = |result: &Message| result.tool_call_id.as_deref().is_some_and(|id| ids.contains(&Some(id)));
    for (index, call) in message.tool_calls.iter().enumerate() {
        let base = if index == 0 { message.clone() } else { Message::text(Role::Assistant, "") };
        parted.push(Message { tool_calls: vec![call.clone()], ..base });
        let by_id = |result: &&mut Option<&Message>| {
            result.is_some_and(|result| call.id.is_some() && result.tool_call_id == call.id)
        };
        let result = match results.iter_mut().find(by_id) {
            Some(result) => result.take(),
            None => {
                results.iter_mut().find(|result| result.is_some_and(|result| !is_named(result))).and_then(Option::take)
            }
        };
        parted.extend(result.cloned());
    }
    parted.extend(results.into_iter().flatten().cloned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::ToolCall;

    fn calling(ids: &[Option<&str>]) -> Message {
        let calls = ids.iter().enumerate().map(|(index, id)| ToolCall {
            id: id.map(str::to_owned),
            name: format!("call {index}"),
            arguments: "{}".into(),
        });
        Message { tool_calls: calls.collect(), ..Message::text(Role::Assistant, "On it.") }
    }

    fn result(id: Option<&str>, text: &str) -> Message {
        Message { tool_call_id: id.map(str::to_owned), ..Message::text(Role::Tool, text) }
    }

    fn shown(messages: Vec<Message>) -> String {
        let messages = one_by_one(Cow::Owned(messages));
        let shown = messages.iter().map(|message| {
            let calls: Vec<&str> = message.tool_calls.iter().map(|call| call.name.as_str()).collect();
            format!("{} {}{}", message.role.template_name(), message.content, calls.join("+"))
        });
        shown.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn results_follow_their_calls_by_id_or_in_their_order() {
        let end = Message::text(Role::User, "Thanks");
        let by_id = vec![calling(&[Some("a"), Some("b")]), result(Some("b"), "B"), result(Some("a"), "A"), end.clone()];
        insta::assert_snapshot!(shown(by_id), @"assistant On it.call 0; tool A; assistant call 1; tool B; user Thanks");
        let in_order = vec![calling(&[None, None]), result(None, "A"), result(None, "B"), result(None, "C"), end];
        insta::assert_snapshot!(shown(in_order), @"assistant On it.call 0; tool A; assistant call 1; tool B; tool C; user Thanks");
        let missing = vec![calling(&[Some("a"), Some("b")]), result(Some("b"), "B")];
        insta::assert_snapshot!(shown(missing), @"assistant On it.call 0; assistant call 1; tool B");
    }

    #[test]
    fn single_calls_stay_as_they_are() {
        let messages = [calling(&[Some("a")]), result(Some("a"), "A")];
        assert!(matches!(one_by_one(Cow::Borrowed(&messages)), Cow::Borrowed(same) if same == messages));
    }
}
