//! What `hob bench` asks: the built-in household, its questions, and request bodies as OpenAI's clients send them.
//!
//! A *body* is the JSON of one `POST /v1/chat/completions`. All of it is made in code from the demo household, so that two
//! machines are asked the same. Nothing is measured here.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::prompt::{Document, Profile};

const SYSTEM: &str = include_str!("../../../assets/demo/house.md");
const TOOLS: &str = include_str!("../../../assets/demo/tools.json");
const DOCUMENTS: [(&str, &str); 3] = [
    ("handbook", include_str!("../../../assets/demo/documents/handbook.md")),
    ("appliances", include_str!("../../../assets/demo/documents/appliances.md")),
    ("calendar", include_str!("../../../assets/demo/documents/calendar.md")),
];

/// What a household asks its assistant. Each begins with another word, so that none stands on another's first words.
pub(super) const QUESTIONS: [&str; 15] = [
    "When is the paper bin collected next?",
    "How warm is it in the kitchen right now?",
    "Is the back door locked for the night?",
    "Who has a birthday in the coming month?",
    "What is the code of the guest network?",
    "Which programme washes wool without shrinking it?",
    "Where is the main valve of the water?",
    "Can you turn off the lights upstairs, please?",
    "Does the dishwasher need more salt this week?",
    "Should the heating run while the window is open?",
    "Will anybody be home on Thursday afternoon?",
    "Has the filter of the dryer been cleaned?",
    "Are there any appointments at the dentist?",
    "Please set a timer for the eggs, seven minutes.",
    "Dim the lamp in the hall to a third.",
];

/// A household of about 3,000 tokens, for those who have none configured.
pub(super) fn demo_profile() -> Profile {
    Profile {
        name: "demo-household".to_owned(),
        system: SYSTEM.to_owned(),
        tools: demo_tools().iter().map(|tool| tool.get().to_owned()).collect(),
        documents: DOCUMENTS
            .map(|(title, text)| Document { title: title.to_owned(), text: text.to_owned() })
            .into_iter()
            .collect(),
        ..Profile::default()
    }
}

/// A long English text, for whoever needs tokens and does not care which.
pub(super) fn text() -> String {
    DOCUMENTS.map(|(_, text)| text).concat()
}

/// A client's request of about 5,000 tokens: its own system text with the states of a house, 30 tools, three turns of history.
pub(super) fn household(model: &str) -> Value {
    const N_TOOLS: usize = 30;
    const N_STATES: usize = 52;
    let demo: Vec<Value> = demo_tools()
        .iter()
        .map(|tool| serde_json::from_str(tool.get()).expect("the demo household's tools are JSON, see the test"))
        .collect();
    let tools: Vec<Value> = (0..N_TOOLS)
        .map(|index| {
            let mut tool = demo[index % demo.len()].clone();
            let name = tool["function"]["name"].as_str().unwrap_or_default();
            tool["function"]["name"] = format!("{name}_{}", index / demo.len()).into();
            tool
        })
        .collect();
    let states: String = (0..N_STATES)
        .map(|index| format!("- light.room_{index}: 'Ceiling light {index}', state on, brightness {}\n", index * 4))
        .collect();
    json!({
        "model": model,
        "stream": true,
        "messages": [
            { "role": "system", "content": format!("{SYSTEM}\n{states}") },
            { "role": "user", "content": "Good morning! Is anything on today that I should know of?" },
            { "role": "assistant", "content": "Good morning. The paper bin is collected today, and Teddy has swimming at 16:00." },
            { "role": "user", "content": "Then remind me at half past three to pack his bag." },
            { "role": "assistant", "content": "I will remind you at 15:30." },
            { "role": "user", "content": "And how warm is it outside?" },
        ],
        "tools": tools,
        "max_tokens": 200,
    })
}

/// `body` with something new at its end: request number `n` of its kind. Bodies whose last message is no plain text stay.
pub(super) fn renewed(body: &Value, n: usize) -> Value {
    let mut body = body.clone();
    if let Some(message) = body["messages"].as_array_mut().and_then(|messages| messages.last_mut())
        && let Some(text) = message["content"].as_str()
    {
        message["content"] = format!("{text} ({n})").into();
    }
    body
}

/// What a client sends next in a tool loop: `body`, the model's call, the tool's result.
pub(super) fn continued(body: &Value, n: usize) -> Value {
    let mut body = body.clone();
    let name = body["tools"][0]["function"]["name"].as_str().unwrap_or("get_state").to_owned();
    let id = format!("call_{n}");
    let call = json!({ "role": "assistant", "content": "", "tool_calls": [{
        "id": id,
        "type": "function",
        "function": { "name": name, "arguments": json!({ "room": format!("room {n}") }).to_string() },
    }] });
    let result = json!({
        "role": "tool",
        "tool_call_id": id,
        "content": json!({ "success": true, "temperature": 18.5, "measured": format!("{n} minutes ago") }).to_string(),
    });
    if let Some(messages) = body["messages"].as_array_mut() {
        messages.extend([call, result]);
    }
    body
}

fn demo_tools() -> Vec<Box<RawValue>> {
    serde_json::from_str(TOOLS).expect("the demo household's tools are a JSON array, see the test")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::http::parse_chat;
    use crate::request::Role;

    #[test]
    fn the_demo_profile_is_complete() {
        let profile = demo_profile();
        assert_eq!((profile.tools.len(), profile.documents.len()), (12, 3));
        assert!(profile.documents.iter().all(|document| !document.text.is_empty()));
    }

    #[test]
    fn each_question_begins_with_another_word() {
        let words: HashSet<&str> = QUESTIONS.iter().filter_map(|question| question.split(' ').next()).collect();
        assert_eq!(words.len(), QUESTIONS.len());
    }

    #[test]
    fn a_household_has_thirty_tools_of_different_names() {
        let request = parse_chat(household("house").to_string().as_bytes(), "bench").unwrap();
        let names: HashSet<&str> = request.tools.iter().filter_map(|tool| tool.split('"').nth(9)).collect();
        assert_eq!((request.tools.len(), names.len()), (30, 30));
        assert!(names.contains("set_light_0") && names.contains("set_light_2"), "{names:?}");
    }

    #[test]
    fn a_renewed_body_differs_in_its_last_message_alone() {
        let (first, second) = (renewed(&household("house"), 1), renewed(&household("house"), 2));
        let messages = |body: &Value| body["messages"].as_array().unwrap().clone();
        let (first, second) = (messages(&first), messages(&second));
        let n_common = first.iter().zip(&second).take_while(|(a, b)| a == b).count();
        assert_eq!((n_common, first.len(), second.len()), (5, 6, 6));
    }

    #[test]
    fn a_tool_loop_goes_on_behind_the_same_messages() {
        let body = household("house");
        let request = parse_chat(body.to_string().as_bytes(), "bench").unwrap();
        let next = parse_chat(continued(&body, 7).to_string().as_bytes(), "bench").unwrap();
        assert_eq!(next.messages[..6], request.messages[..]);
        assert_eq!(next.messages[6].tool_calls[0].name, "set_light_0");
        assert_eq!(next.messages[7].role, Role::Tool);
        assert_eq!(next.messages[7].tool_call_id, next.messages[6].tool_calls[0].id);
        assert_eq!(next.messages.len(), 8);
    }
}
