//! Canonical JSON: what a JSON text says, without how it is written.
//!
//! *Canonical* forms of two texts are equal if they differ by the order of keys, white space, escapes and the spelling of
//! numbers only; of tool definitions also by the order inside the arrays that are sets. They are only hashed, never
//! rendered: what a prompt holds are somebody's own bytes.

use serde_json::{Map, Value};

/// Assistants' turns longer than this are not searched for JSON: each brace in them might begin some.
const SPAN_BYTES_MAX: usize = 64 << 10;
/// Integers below this have one float each, so that `21` and `21.0` are the same number.
const EXACT_MAX: f64 = (1_u64 << 53) as f64;

pub(super) fn add(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

pub(super) fn add_json(hasher: &mut blake3::Hasher, json: &Value) {
    add_value(hasher, json, Reading::Data);
}

/// Of a tool definition; a text that is no JSON is taken as it is.
pub(super) fn tool(text: &str) -> blake3::Hash {
    digest(text, Reading::Schema)
}

/// Of a call's arguments. Some clients send nothing where there are none.
pub(super) fn arguments(text: &str) -> blake3::Hash {
    let text = if text.trim().is_empty() { "{}" } else { text };
    digest(text, Reading::Data)
}

/// Of an assistant's turn: its text with each JSON object in it canonical, and the white space around those left out.
/// `None`: there is no object in it, or one that is not wanted.
pub(super) fn turn(text: &str, is_wanted: impl Fn(&Map<String, Value>) -> bool) -> Option<blake3::Hash> {
    if text.len() > SPAN_BYTES_MAX {
        return None;
    }
    let mut hasher = blake3::Hasher::new();
    let (mut copied, mut from) = (0, 0);
    while let Some(start) = text[from..].find('{').map(|n| from + n) {
        let mut values = serde_json::Deserializer::from_str(&text[start..]).into_iter::<Map<String, Value>>();
        let Some(Ok(object)) = values.next() else {
            from = start + 1;
            continue;
        };
        if !is_wanted(&object) {
            return None;
        }
        from = start + values.byte_offset();
        add(&mut hasher, text[copied..start].trim().as_bytes());
        add_json(&mut hasher, &Value::Object(object));
        copied = from;
    }
    if copied == 0 {
        return None;
    }
    add(&mut hasher, text[copied..].trim().as_bytes());
    Some(hasher.finalize())
}

/// Whether `object`, found in a turn, is one of the calls whose arguments are `known`: bare, or in the object that names it.
pub(super) fn is_call(object: &Map<String, Value>, known: &[blake3::Hash]) -> bool {
    let is_known = |arguments: &Map<String, Value>| {
        let mut hasher = blake3::Hasher::new();
        add_object(&mut hasher, arguments, Reading::Data);
        known.contains(&hasher.finalize())
    };
    is_known(object) || object.values().filter_map(Value::as_object).any(is_known)
}

/// What the arrays in a value are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Lists, whose order says something.
    Data,
    /// Those called `enum` and `required` are sets.
    Schema,
}

fn digest(text: &str, reading: Reading) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    match serde_json::from_str::<Value>(text) {
        Ok(json) => add_value(&mut hasher, &json, reading),
        Err(_) => add(&mut hasher, text.trim().as_bytes()),
    }
    hasher.finalize()
}

fn add_value(hasher: &mut blake3::Hasher, json: &Value, reading: Reading) {
    match json {
        Value::Object(object) => add_object(hasher, object, reading),
        Value::Array(items) => {
            hasher.update(b"[");
            items.iter().for_each(|item| add_value(hasher, item, reading));
            hasher.update(b"]");
        }
        Value::String(text) => {
            hasher.update(b"s");
            add(hasher, text.as_bytes());
        }
        Value::Number(number) => {
            let whole = number.as_f64().filter(|value| value.fract() == 0.0 && value.abs() < EXACT_MAX);
            let spelled = whole.map_or_else(|| number.to_string(), |value| format!("{}", value as i64));
            hasher.update(b"v");
            add(hasher, spelled.as_bytes());
        }
        Value::Null | Value::Bool(_) => {
            hasher.update(b"v");
            add(hasher, json.to_string().as_bytes());
        }
    }
}

fn add_object(hasher: &mut blake3::Hasher, object: &Map<String, Value>, reading: Reading) {
    let mut entries: Vec<(&String, &Value)> = object.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    hasher.update(b"{");
    for (key, value) in entries {
        add(hasher, key.as_bytes());
        match (reading, key.as_str(), value) {
            (Reading::Schema, "enum" | "required", Value::Array(items)) => add_set(hasher, items),
            // Values, in which a key is no keyword. A parameter of such a name is only compared more strictly.
            (Reading::Schema, "default" | "const" | "examples", value) => add_value(hasher, value, Reading::Data),
            _ => add_value(hasher, value, reading),
        }
    }
    hasher.update(b"}");
}

fn add_set(hasher: &mut blake3::Hasher, items: &[Value]) {
    let mut digests: Vec<[u8; 32]> = items
        .iter()
        .map(|item| {
            let mut hasher = blake3::Hasher::new();
            add_json(&mut hasher, item);
            hasher.finalize().into()
        })
        .collect();
    digests.sort_unstable();
    hasher.update(b"e");
    digests.iter().for_each(|digest| add(hasher, digest));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_is_equal_in_any_spelling_and_another_by_any_content() {
        let known = r#"{"function": {"name": "light", "parameters": {"properties": {"on": {"enum": ["a", "b"], "type": "string"},
            "level": {"maximum": 100}}, "required": ["on", "level"]}}}"#;
        let equal = r#"{"function":{"parameters":{"required":["level","on"],"properties":{"level":{"maximum":1e2},
            "on":{"type":"string","enum":["b","\u0061"]}}},"name":"light"}}"#;
        assert_eq!(tool(known), tool(equal));
        let others = [
            known.replace(r#"["a", "b"]"#, r#"["a"]"#),
            known.replace(r#"["a", "b"]"#, r#"["a", "b", "c"]"#),
            known.replace("light", "lights"),
            known.replace("100", "101"),
            known.replace("enum", "items"),
        ];
        for other in &others {
            assert_ne!(tool(known), tool(other), "{other}");
        }
        // A list stays a list, also inside a value that looks like a schema.
        assert_ne!(tool(r#"{"items": [1, 2]}"#), tool(r#"{"items": [2, 1]}"#));
        assert_ne!(tool(r#"{"default": {"enum": [1, 2]}}"#), tool(r#"{"default": {"enum": [2, 1]}}"#));
        assert_ne!(tool("no JSON"), tool("no  JSON"));
    }

    #[test]
    fn arguments_keep_the_order_of_lists_and_nothing_else() {
        assert_eq!(arguments(r#"{"a": 21.0, "b": "é"}"#), arguments(r#"{"b":"\u00e9","a":21}"#));
        assert_eq!(arguments(" "), arguments("{}"));
        assert_ne!(arguments(r#"{"enum": [1, 2]}"#), arguments(r#"{"enum": [2, 1]}"#));
        assert_ne!(arguments(r#"{"a": "1"}"#), arguments(r#"{"a": 1}"#));
    }

    #[test]
    fn a_turn_is_its_text_and_its_objects() {
        let all = |text: &str| turn(text, |_| true);
        let known = all("On it.\n<call>\n{\"name\": \"light\", \"arguments\": {\"a\": 1, \"b\": 2}}\n</call>");
        assert_eq!(known, all("On it.\n<call>{\"name\":\"light\",\"arguments\":{\"b\":2,\"a\":1}}</call>"));
        assert_ne!(known, all("On it!\n<call>{\"name\":\"light\",\"arguments\":{\"b\":2,\"a\":1}}</call>"));
        assert_ne!(known, all("On it.\n<call>{\"name\":\"light\",\"arguments\":{\"b\":2,\"a\":2}}</call>"));
        assert_eq!(all("no { object"), None);
        assert_eq!(turn("{\"a\": 1}", |_| false), None);
        assert_eq!(all(&format!("{{}}{}", " ".repeat(SPAN_BYTES_MAX))), None);
    }

    #[test]
    fn an_object_is_a_call_by_its_arguments() {
        let object = |text: &str| serde_json::from_str::<Map<String, Value>>(text).unwrap();
        let known = [arguments(r#"{"a": 1}"#)];
        assert!(is_call(&object(r#"{"name": "x", "arguments": {"a": 1}}"#), &known));
        assert!(is_call(&object(r#"{"a": 1.0}"#), &known));
        assert!(!is_call(&object(r#"{"name": "x", "arguments": {"a": 2}}"#), &known));
        assert!(!is_call(&object(r#"{"name": "x", "arguments": {"a": 1}}"#), &[]));
    }
}
