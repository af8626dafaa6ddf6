//! Content as clients write it: a text, or a list of parts; and the marks that they set in it.
//!
//! A *part* is one piece of a content. A *mark* is `cache_control`: the client holds what stands before
//! its end to be constant.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

use crate::http::error::ApiError;

pub(in crate::http) enum Content<P> {
    Text(String),
    Parts(Vec<P>),
}

/// By hand: a derived untagged enum would forget which field was wrong.
impl<'de, P: Deserialize<'de>> Deserialize<'de> for Content<P> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content<P>, D::Error> {
        struct TextOrParts<P>(PhantomData<P>);

        impl<'de, P: Deserialize<'de>> Visitor<'de> for TextOrParts<P> {
            type Value = Content<P>;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a string or a list of parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content<P>, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<Content<P>, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content<P>, A::Error> {
                let mut all = Vec::new();
                while let Some(part) = parts.next_element()? {
                    all.push(part);
                }
                Ok(Content::Parts(all))
            }
        }

        deserializer.deserialize_any(TextOrParts(PhantomData))
    }
}

/// The texts of parts, joined by a line feed.
#[derive(Default)]
pub(in crate::http) struct Joined {
    pub(in crate::http) text: String,
    /// How much of it stands before the last mark.
    pub(in crate::http) n_marked_bytes: usize,
    pub(in crate::http) n_parts: usize,
}

impl Joined {
    pub(in crate::http) fn push(&mut self, text: &str, is_marked: bool) {
        if self.n_parts > 0 {
            self.text.push('\n');
        }
        self.n_parts += 1;
        self.text.push_str(text);
        if is_marked {
            self.n_marked_bytes = self.text.len();
        }
    }
}

#[derive(Deserialize)]
pub(in crate::http) struct Mark {
    r#type: String,
    ttl: Option<String>,
}

/// `place`: of what may be marked. How long a mark is to hold makes no difference here: what is used stays.
pub(in crate::http) fn is_marked(mark: Option<&Mark>, place: &str) -> Result<bool, ApiError> {
    let Some(Mark { r#type, ttl }) = mark else { return Ok(false) };
    let field = |name: &str| match place {
        "" => format!("cache_control.{name}"),
        _ => format!("{place}.cache_control.{name}"),
    };
    if r#type != "ephemeral" {
        return Err(ApiError::field(field("type"), format!("\"{type}\": must be \"ephemeral\"")));
    }
    match ttl.as_deref() {
        None | Some("5m" | "1h") => Ok(true),
        Some(other) => Err(ApiError::field(field("ttl"), format!("\"{other}\": must be \"5m\" or \"1h\""))),
    }
}
