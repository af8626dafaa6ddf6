//! Parses whether and how long the model is to think: the many names that servers and clients have for it.
//!
//! OpenAI says `reasoning_effort`, vLLM and llama-server `chat_template_kwargs`, Qwen's own server `enable_thinking`, Ollama
//! `think`. If they contradict each other, what is said to the template itself counts most.

use serde_json::{Map, Value};

use super::integer;
use crate::http::error::ApiError;
use crate::request::Thinking;

/// What templates are given by hob itself.
const TAKEN: [&str; 8] = [
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "bos_token",
    "eos_token",
    "date_string",
];
/// A template has a handful of switches.
const ARGS_MAX: usize = 32;

/// The fields of a request that speak of it.
#[derive(Default)]
pub(in crate::http) struct Fields<'a> {
    pub(in crate::http) reasoning_effort: Option<&'a str>,
    pub(in crate::http) enable_thinking: Option<bool>,
    pub(in crate::http) think: Option<&'a Value>,
    pub(in crate::http) chat_template_kwargs: Option<&'a Map<String, Value>>,
    pub(in crate::http) reasoning_budget: Option<i64>,
    pub(in crate::http) thinking_budget_tokens: Option<i64>,
}

impl Fields<'_> {
    pub(in crate::http) fn thinking(&self) -> Result<Thinking, ApiError> {
        let by_effort = self.reasoning_effort.map(|word| level("reasoning_effort", word)).transpose()?;
        let by_think = match self.think {
            None => None,
            Some(Value::Bool(is_on)) => Some(Level { is_on: *is_on, effort: None }),
            Some(Value::String(word)) => Some(level("think", word)?),
            Some(other) => return Err(ApiError::field("think", format!("{other}: must be true, false or {LEVELS}"))),
        };
        let arg = |name: &str| self.chat_template_kwargs.and_then(|args| args.get(name));
        let by_template = match arg("enable_thinking") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(is_on)) => Some(*is_on),
            Some(other) => {
                let reason = format!("{other}: must be true or false");
                return Err(ApiError::field("chat_template_kwargs.enable_thinking", reason));
            }
        };
        let effort_for_template = match arg("reasoning_effort") {
            Some(Value::String(word)) => Some(level("chat_template_kwargs.reasoning_effort", word)?),
            _ => None,
        };
        let levels = [effort_for_template, by_think, by_effort];
        let budget = self.budget()?;
        // No token to think in is no thinking, where the template can say so.
        let is_on = by_template
            .or(self.enable_thinking)
            .or(levels.iter().flatten().map(|level| level.is_on).next())
            .or((budget == Some(0)).then_some(false));
        let effort = levels.into_iter().flatten().find_map(|level| level.effort).map(str::to_owned);
        Ok(Thinking { is_on, effort, budget })
    }

    fn budget(&self) -> Result<Option<usize>, ApiError> {
        // -1 is no bound, as llama-server has it.
        let budget = |field, value| integer(field, value, -1, i64::MAX);
        let old = budget("reasoning_budget", self.reasoning_budget)?;
        let new = budget("thinking_budget_tokens", self.thinking_budget_tokens)?;
        Ok(new.or(old).and_then(|n_tokens| usize::try_from(n_tokens).ok()))
    }

    /// What else the template is told, by its names, each as JSON.
    pub(in crate::http) fn template_args(&self) -> Result<Vec<(String, String)>, ApiError> {
        let Some(args) = self.chat_template_kwargs else { return Ok(Vec::new()) };
        if args.len() > ARGS_MAX {
            let reason = format!("has {} names: at most {ARGS_MAX} are allowed", args.len());
            return Err(ApiError::field("chat_template_kwargs", reason));
        }
        if let Some(name) = args.keys().find(|name| TAKEN.contains(&name.as_str())) {
            let place = format!("chat_template_kwargs.{name}");
            return Err(ApiError::field(place, "hob itself tells the template this"));
        }
        let args = args.iter().filter(|(name, _)| !matches!(name.as_str(), "enable_thinking" | "reasoning_effort"));
        Ok(args.map(|(name, value)| (name.clone(), value.to_string())).collect())
    }
}

struct Level {
    is_on: bool,
    effort: Option<&'static str>,
}

const LEVELS: &str = "none, minimal, low, medium, high or xhigh";

/// Templates know three levels.
fn level(field: &str, word: &str) -> Result<Level, ApiError> {
    let effort = match word {
        "none" => return Ok(Level { is_on: false, effort: None }),
        "minimal" | "low" => "low",
        "medium" => "medium",
        "high" | "xhigh" => "high",
        _ => return Err(ApiError::field(field, format!("\"{word}\": must be {LEVELS}"))),
    };
    Ok(Level { is_on: true, effort: Some(effort) })
}
