//! Parses the content of OpenAI's messages and items.
//!
//! Only text can be read here; its parts are joined by a line feed. A *breakpoint* is OpenAI's word for a mark.

use serde::Deserialize;

use super::content::{Content, Joined, Mark, is_marked};
use crate::http::error::ApiError;

#[derive(Deserialize)]
pub(in crate::http) struct Part {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
    cache_control: Option<Mark>,
    prompt_cache_breakpoint: Option<Breakpoint>,
}

#[derive(Deserialize)]
struct Breakpoint {
    mode: Option<String>,
}

/// The text of all parts. `place`: where the content stands, for errors.
pub(in crate::http) fn join(content: Content<Part>, place: &str) -> Result<Joined, ApiError> {
    let mut joined = Joined::default();
    let parts = match content {
        Content::Text(text) => {
            joined.push(&text, false);
            return Ok(joined);
        }
        Content::Parts(parts) => parts,
    };
    for (index, part) in parts.into_iter().enumerate() {
        let place = format!("{place}[{index}]");
        let (field, text) = match part.r#type.as_str() {
            "text" | "input_text" | "output_text" | "reasoning_text" | "summary_text" => ("text", part.text),
            // What a model would not do is what it said.
            "refusal" => ("refusal", part.refusal),
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
        let is_marked = is_marked(part.cache_control.as_ref(), &place)?;
        let is_broken = is_breakpoint(part.prompt_cache_breakpoint, &place)?;
        joined.push(&text, is_marked || is_broken);
    }
    Ok(joined)
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
