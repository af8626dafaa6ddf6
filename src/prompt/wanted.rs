//! What is wanted of an answer, seen from the prompt that it follows: a call needs its tool there, and a house may have its own
//! mind about thinking.

use std::borrow::Cow;

use serde::Deserialize;

use super::PromptError;
use super::sentinel::{Controls, Reserved};
use crate::request::{Thinking, ToolChoice, Wanted};

/// Refuses the choice of a tool that is not among `tools`, the JSON texts of the definitions in the prompt.
pub(super) fn check(wanted: &Wanted, tools: &[String]) -> Result<(), PromptError> {
    let refused = |reason: String| Err(PromptError::Wanted { place: "tool_choice".to_owned(), reason });
    match &wanted.tool_choice {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            refused("a call is required, and there are no tools".to_owned())
        }
        ToolChoice::Named(name) => {
            let names: Vec<String> = tools.iter().filter_map(|tool| self::name(tool)).collect();
            if names.contains(name) {
                return Ok(());
            }
            refused(format!("there is no tool `{name}`; there are: {}", names.join(", ")))
        }
        ToolChoice::Auto | ToolChoice::None | ToolChoice::Required => Ok(()),
    }
}

/// `wanted`, with the house's mind about thinking where the client has none.
pub(super) fn with_default(wanted: &Wanted, is_on: Option<bool>) -> Cow<'_, Wanted> {
    if is_on.is_none() || wanted.thinking.is_on.is_some() {
        return Cow::Borrowed(wanted);
    }
    let thinking = Thinking { is_on, ..wanted.thinking.clone() };
    Cow::Owned(Wanted { thinking, ..wanted.clone() })
}

/// Keeps control tokens that are spelled in what a template may ask for text, as in messages.
pub(super) fn guard(wanted: &mut Wanted, controls: &Controls) -> Result<(), PromptError> {
    let reserved = |place: String| move |Reserved(code)| PromptError::ReservedElsewhere { place, code };
    for (name, json) in &mut wanted.template_args {
        controls.guard_json(json).map_err(reserved(format!("chat_template_kwargs.{name}")))?;
    }
    if let Some(effort) = &mut wanted.thinking.effort {
        controls.guard(effort).map_err(reserved("reasoning_effort".to_owned()))?;
    }
    Ok(())
}

fn name(tool: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Tool {
        function: Function,
    }
    #[derive(Deserialize)]
    struct Function {
        name: String,
    }
    serde_json::from_str(tool).ok().map(|tool: Tool| tool.function.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choosing(tool_choice: ToolChoice) -> Wanted {
        Wanted { tool_choice, ..Wanted::default() }
    }

    #[test]
    fn a_chosen_tool_is_in_the_prompt() {
        let tools = ["light", "door"].map(|name| format!(r#"{{"function":{{"name":"{name}"}},"type":"function"}}"#));
        let verdict = |choice: ToolChoice, tools: &[String]| {
            check(&choosing(choice), tools).map_err(|error| error.to_string()).err().unwrap_or_default()
        };
        let named = |name: &str| ToolChoice::Named(name.to_owned());
        assert_eq!(verdict(named("door"), &tools), "");
        assert_eq!(verdict(named("oven"), &tools), "tool_choice: there is no tool `oven`; there are: light, door");
        assert_eq!(verdict(ToolChoice::Required, &tools), "");
        for choice in [ToolChoice::Required, named("door")] {
            assert_eq!(verdict(choice, &[]), "tool_choice: a call is required, and there are no tools");
        }
        for choice in [ToolChoice::Auto, ToolChoice::None] {
            assert_eq!(verdict(choice, &[]), "");
        }
    }

    #[test]
    fn a_client_that_says_whether_to_think_is_heard() {
        let thinking = |is_on| Wanted { thinking: Thinking { is_on, ..Thinking::default() }, ..Wanted::default() };
        for (said, house, expected) in [
            (None, None, None),
            (None, Some(false), Some(false)),
            (Some(true), Some(false), Some(true)),
            (Some(false), None, Some(false)),
        ] {
            assert_eq!(with_default(&thinking(said), house).thinking.is_on, expected);
        }
    }
}
