//! Parses the content of a message: a text, or parts.
//!
//! A *part* is one piece of a content; only text can be read here, and its parts are joined by a line feed. A *mark* is
//! `cache_control`, on a part or on the whole message, or OpenAI's `prompt_cache_breakpoint`: the client holds what stands before
//! its end to be constant.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use crate::http::error::ApiError;

pub(in crate::http) enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
pub(in crate::http) struct Part {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    cache_control: Option<Mark>,
    prompt_cache_breakpoint: Option<Breakpoint>,
}

#[derive(Deserialize)]
pub(in crate::http) struct Mark {
    r#type: String,
}

#[derive(Deserialize)]
struct Breakpoint {
    mode: Option<String>,
}

/// The text of all parts, and how many bytes of it stand before the last mark. `place`: where the content stands, for errors.
pub(in crate::http) fn join(content: Content, place: &str) -> Result<(String, usize), ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok((text, 0)),
        Content::Parts(parts) => parts,
    };
    let (mut joined, mut n_marked_bytes) = (String::new(), 0);
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        let Part { r#type, text, refusal, cache_control, prompt_cache_breakpoint } = part;
        let (field, text) = match r#type.as_str() {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => ("text", text),
            // What a model would not do is what it said.
            "refusal" => ("refusal", refusal),
            other => {
                let reason = match other {
                    "image_url" | "input_image" => "images are not supported yet: send text alone".to_owned(),
                    "input_audio" => "audio is not supported yet: send text alone".to_owned(),
                    _ => format!("\"{other}\" is not supported: only text can be read here"),
                };
                return Err(ApiError::field(format!("{place}.type"), reason));
            }
        };
        let text = text.ok_or_else(|| ApiError::field(format!("{place}.{field}"), "is required"))?;
        if index > 0 {
            joined.push('\n');
        }
        joined.push_str(&text);
        if is_marked(cache_control, &place)? | is_breakpoint(prompt_cache_breakpoint, &place)? {
            n_marked_bytes = joined.len();
        }
    }
    Ok((joined, n_marked_bytes))
}

pub(in crate::http) fn is_marked(mark: Option<Mark>, place: &str) -> Result<bool, ApiError> {
    match mark {
        None => Ok(false),
        Some(Mark { r#type }) if r#type == "ephemeral" => Ok(true),
        Some(Mark { r#type }) => {
            let reason = format!("\"{type}\": must be \"ephemeral\"");
            Err(ApiError::field(format!("{place}.cache_control.type"), reason))
        }
    }
}

fn is_breakpoint(breakpoint: Option<Breakpoint>, place: &str) -> Result<bool, ApiError> {
    match breakpoint.map(|breakpoint| breakpoint.mode) {
        None => Ok(false),
        Some(mode) if mode.as_deref().is_none_or(|mode| mode == "explicit") => Ok(true),
        Some(mode) => {
            let reason = format!("\"{}\": must be \"explicit\"", mode.unwrap_or_default());
            Err(ApiError::field(format!("{place}.prompt_cache_breakpoint.mode"), reason))
        }
    }
}

/// By hand: a derived untagged enum would forget which field was wrong.
impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        struct TextOrParts;

        impl<'de> Visitor<'de> for TextOrParts {
            type Value = Content;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut all = Vec::new();
                while let Some(part) = parts.next_element()? {
                    all.push(part);
                }
                Ok(Content::Parts(all))
            }
        }

        deserializer.deserialize_any(TextOrParts)
    }
}
